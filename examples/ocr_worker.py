"""RapidOCR in a process and an environment of its own, for `bench_ocr.py`: a path a line in, JSON a line out.

python ocr_worker.py THREADS
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from time import perf_counter, process_time


def main() -> None:
    """Load, then answer."""
    engine = import_module("rapidocr").RapidOCR(
        params={
            "EngineConfig.onnxruntime.intra_op_num_threads": int(sys.argv[1]),
            "Global.log_level": "critical",
        }
    )
    print(json.dumps({"ready": True}), flush=True)
    for path in sys.stdin:
        start, begun = perf_counter(), process_time()
        given = engine(path.strip())
        spent = {"seconds": perf_counter() - start, "busy": process_time() - begun}
        print(json.dumps({"text": "\n".join(given.txts or ()), **spent}), flush=True)


if __name__ == "__main__":
    main()
