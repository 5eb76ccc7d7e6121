"""What range an activation has: statistics that stream over batches in bounded memory."""

from alula.calibration.amplitudes import Amplitudes
from alula.calibration.entropy import Entropy
from alula.calibration.methods import METHODS, Calibrator, MinMax, Percentile, calibrator

__all__ = ["METHODS", "Amplitudes", "Calibrator", "Entropy", "MinMax", "Percentile", "calibrator"]
