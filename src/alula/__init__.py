"""From a HuggingFace checkpoint to a proved, measured and served engine."""

import os
import sys

__version__ = "0.1.0"

# Both runtimes report to their makers as soon as they are imported, unasked. ONNX Runtime reads this variable; OpenVINO
# goes without its package for it where that cannot be imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type] # None: may not be imported
