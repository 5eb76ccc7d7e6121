"""all-MiniLM-L6-v2 on every CPU engine and precision, beside PyTorch eager, in one run."""

from __future__ import annotations

import subprocess
import sys

from demo import HERE, packaged_minilm

ENGINES = (("openvino", "fp32"), ("openvino", "bf16"), ("onnxruntime", "fp32"))
SHAPES = "1x32,1x128,8x128,16x64"


def main() -> int:
    """Build what is compared, then compare it."""
    model = packaged_minilm()
    HERE.mkdir(exist_ok=True)
    bundles = []
    for engine, precision in ENGINES:
        bundle = HERE / f"{engine}-{precision}"
        alula("build", str(model), "-o", str(bundle), "--target", engine, "--precision", precision)
        bundles.append(str(bundle))
    alula("bench", *bundles, "--shapes", SHAPES, "--threads", "2", "--figure", str(HERE / "bench.svg"))
    return 0


def alula(*args: str) -> None:
    """Run one command as a user would."""
    subprocess.run([sys.executable, "-m", "alula", *args], check=True)


if __name__ == "__main__":
    sys.exit(main())
