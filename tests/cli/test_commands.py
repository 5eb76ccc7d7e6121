"""The whole command line on the real encoder, as a user runs it: own processes, real exit codes."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import tiny

import alula

SOURCES = Path(alula.__file__).parent.parent

pytestmark = pytest.mark.timeout(300)


def run(*args: str, sources: Path = SOURCES, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "alula", *args],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": str(sources), "OMP_NUM_THREADS": "2", **env},
    )


@pytest.fixture(scope="module")
def built(minilm_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """Bundle, cache, and what `build --json` said; the golden outputs are the reference, so nothing loads torch."""
    folder = tmp_path_factory.mktemp("built")
    bundle, cache = folder / "minilm", folder / "cache"
    done = run(
        "build",
        str(minilm_folder),
        "-o",
        str(bundle),
        "--reference",
        "golden",
        "--json",
        ALULA_CACHE=str(cache),
    )
    assert done.returncode == 0, done.stderr
    return bundle, cache, json.loads(done.stdout)


def test_build_gives_a_verified_bundle_with_every_precision_tried(
    built: tuple[Path, Path, dict[str, Any]],
) -> None:
    _, _, report = built
    assert report["schema"] == 1
    assert report["command"] == "build"
    assert report["verified"] is True
    assert report["cached"] is False
    assert [rung["precision"] for rung in report["precisions"]] == ["fp32", "bf16"]
    assert sum(rung["taken"] for rung in report["precisions"]) == 1
    golden = [row for row in report["rows"] if row["reference"] == "golden"]
    assert {row["metric"] for row in golden} >= {"cosine"}
    assert all(row["passed"] and row["samples"] >= 20 for row in golden)
    assert {"output", "metric", "samples", "worst", "mean", "limit", "higher_is_better", "passed"} <= set(
        golden[0]
    )


def test_the_same_build_again_comes_from_the_cache(
    built: tuple[Path, Path, dict[str, Any]], minilm_folder: Path, tmp_path: Path
) -> None:
    _, cache, _ = built
    start = perf_counter()
    done = run(
        "build",
        str(minilm_folder),
        "-o",
        str(tmp_path / "again"),
        "--reference",
        "golden",
        "--json",
        ALULA_CACHE=str(cache),
    )
    seconds = perf_counter() - start
    report = json.loads(done.stdout)
    assert report["cached"] is True
    assert report["verified"] is True
    # Under a second on an idle machine (see docs/performance.md); other tests may run beside this one.
    assert seconds < 5, f"took {seconds:.2f} s"


def test_verify_and_inspect_agree_with_build(built: tuple[Path, Path, dict[str, Any]]) -> None:
    bundle, cache, _ = built
    verified = run("verify", str(bundle), "--reference", "golden", "--json", ALULA_CACHE=str(cache))
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["verified"] is True
    inspected = run("inspect", str(bundle), "--json")
    report = json.loads(inspected.stdout)
    assert report["verified"] is True
    assert report["manifest"]["model"]["task"] == "embeddings"
    assert "verified" in run("inspect", str(bundle)).stdout


def test_run_embeds_texts_and_refuses_what_is_for_another_task(
    built: tuple[Path, Path, dict[str, Any]],
) -> None:
    bundle, cache, _ = built
    done = run(
        "run",
        str(bundle),
        "--text",
        "A man plays a guitar.",
        "--text",
        "hi 😀",
        "--json",
        ALULA_CACHE=str(cache),
    )
    rows = json.loads(done.stdout)["rows"]
    assert [len(row["embedding"]) for row in rows] == [384, 384]
    assert sum(value * value for value in rows[0]["embedding"]) == pytest.approx(1.0, abs=1e-4)
    refused = run("run", str(bundle), "--text", "x", "--question", "why?")
    assert refused.returncode == 2
    assert "--question is not for task 'embeddings'" in refused.stderr


def test_bench_reports_rows_and_keeps_them(built: tuple[Path, Path, dict[str, Any]]) -> None:
    bundle, cache, _ = built
    done = run(
        "bench",
        str(bundle),
        "--shapes",
        "1x16",
        "--rounds",
        "6",
        "--no-pytorch",
        "--json",
        ALULA_CACHE=str(cache),
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["engine"] == "openvino"
    assert row["shape"] == "1x16"
    assert row["p50_ms"] > 0
    assert row["load_ms"] > 0
    assert row["peak_host_bytes"] > 50e6
    assert row["metric"] == "cosine"
    kept = json.loads((bundle / "timings.json").read_text())
    assert kept["rows"][0]["shape"] == "1x16"
    assert run("inspect", str(bundle)).returncode == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("build", "MODEL", "-o", "OUT", "--frobnicate"), "No such option: --frobnicate"),
        (("build", "MODEL", "-o", "OUT", "--target", "tpu"), "no target 'tpu'"),
        (("build", "MODEL", "-o", "OUT", "--target", "cuda"), "'cuda' is not built yet"),
        (("build", "MODEL", "-o", "OUT", "--precision", "int3"), "precision 'int3' is not one of"),
        (
            ("build", "MODEL", "-o", "OUT", "--target", "onnxruntime", "--precision", "bf16"),
            "engine 'onnxruntime' offers fp32, fp16, fp16-mixed, int8, int8-mixed, int8-weights, int4-weights, not ",
        ),
        (("build", "MODEL", "-o", "OUT", "--task", "poetry"), "task 'poetry' is not one of"),
        (("build", "MODEL", "-o", "OUT", "--batch", "8:4:2"), "axis 'batch': need 1 <= min <= opt <= max"),
        (("build", "MODEL", "-o", "OUT", "--axis", "width=1:2:3"), "no axis 'width'"),
        (("build", "MODEL", "-o", "OUT", "--length", "2:128:512"), "takes 256 tokens at most"),
        (
            ("build", "MODEL", "-o", "OUT", "--reference", "gut-feeling"),
            "reference 'gut-feeling' is not one of",
        ),
        (("build", "./nowhere", "-o", "OUT"), "nowhere"),
        (("inspect", "nowhere"), "nowhere: does not exist"),
        (("dance",), "No such command 'dance'"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name_with_exit_code_2(
    args: tuple[str, ...], message: str, minilm_folder: Path, tmp_path: Path
) -> None:
    words = {"MODEL": str(minilm_folder), "OUT": str(tmp_path / "out")}
    done = run(*(words.get(arg, arg) for arg in args))
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()


def test_doctor_says_what_is_here() -> None:
    report = json.loads(run("doctor", "--json").stdout)
    assert {row["ability"] for row in report["rows"]} >= {"build", "serve", "run on openvino"}
    assert all(row["available"] for row in report["rows"])


def test_a_bundle_built_for_another_cpu_compiles_again_and_checks_itself(
    built: tuple[Path, Path, dict[str, Any]], tmp_path: Path
) -> None:
    bundle, _, _ = built
    foreign = rewritten(bundle, tmp_path / "foreign", "openvino 2020.1 x86_64 amx")
    cache = tmp_path / "cache"
    done = run("run", str(foreign), "--text", "hello", "--json", ALULA_CACHE=str(cache))
    assert done.returncode == 0, done.stderr
    assert len(list((cache / "engines").iterdir())) == 1
    here = json.loads(run("run", str(bundle), "--text", "hello", "--json").stdout)["rows"][0]["embedding"]
    assert json.loads(done.stdout)["rows"][0]["embedding"] == pytest.approx(here, abs=1e-5)


def test_a_foreign_bundle_that_does_not_agree_with_its_reference_is_refused(
    built: tuple[Path, Path, dict[str, Any]], tmp_path: Path
) -> None:
    bundle, _, _ = built
    foreign = rewritten(bundle, tmp_path / "foreign", "openvino 2020.1 x86_64 amx", spoil=True)
    done = run("run", str(foreign), "--text", "hello", ALULA_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 1
    assert "does not agree with the stored reference outputs" in done.stderr


def rewritten(bundle: Path, to: Path, target: str, *, spoil: bool = False) -> Path:
    """A copy of a bundle that says it was built elsewhere; with `spoil`, its reference outputs are others."""
    shutil.copytree(bundle, to)
    raw = json.loads((to / "manifest.json").read_text())
    raw["engines"]["encoder"]["target"] = target
    if spoil:
        folder = importlib.import_module("alula.bundles.folder")
        stored = folder.load_reference(to / "reference.npz")
        wrong = tuple({name: array[:, ::-1].copy() for name, array in o.items()} for o in stored.outputs)
        stored = folder.Stored(reference=stored.reference, feeds=stored.feeds, outputs=wrong)
        folder.save_reference(to / "reference.npz", stored)
        for record in raw["files"]:
            if record["path"] == "reference.npz":
                path = to / "reference.npz"
                record.update(bytes=path.stat().st_size, sha256=folder.digest.of_file(path))
    (to / "manifest.json").write_text(json.dumps(raw))
    return to


# Planted faults: the torch-free gate must see them.


def planted(tmp_path: Path, file: str, right: str, wrong: str) -> Path:
    """A copy of this package's sources with one fault in it."""
    sources = tmp_path / "src"
    shutil.copytree(SOURCES / "alula", sources / "alula")
    path = sources / "alula" / file
    text = path.read_text()
    assert text.count(right) == 1, f"{file}: the place to plant the fault is not there once"
    path.write_text(text.replace(right, wrong))
    return sources


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (
            "q, k, v = (linear(b, x, name, s.square) for name in (at.query, at.key, at.value))",
            "q, k, v = (linear(b, x, name, s.square) for name in (at.key, at.query, at.value))",
        ),
        ("MASKED = -10000.0", "MASKED = 0.0"),
        (  # A transposed weight: attention's output projection is square, so only its values can tell.
            'y = b.op("MatMul", x, b.weight(f"{name}.weight", *size, head=head, transposed=True), path=name)',
            'turned = not name.endswith("0.attention.output.dense")\n'
            '    y = b.op("MatMul", x, b.weight(f"{name}.weight", *size, head=head, transposed=turned), path=name)',
        ),
    ],
    ids=["query for key", "nothing masked", "a transposed weight"],
)
def test_a_fault_planted_in_the_graph_writer_fails_the_gate_without_torch(
    minilm_folder: Path, tmp_path: Path, right: str, wrong: str
) -> None:
    out = tmp_path / "out"
    done = run(
        *(
            "build",
            str(minilm_folder),
            "-o",
            str(out),
            "--reference",
            "golden",
            "--precision",
            "fp32",
            "--json",
        ),
        sources=planted(tmp_path, "families/layers.py", right, wrong),
        ALULA_CACHE=str(tmp_path / "cache"),
    )
    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout)
    assert report["verified"] is False
    assert any(not row["passed"] for row in report["rows"] if row["reference"] == "golden")
    served = run("serve", str(out), "--port", "0")
    assert served.returncode == 2
    assert "not verified" in served.stderr.lower()


INT8_FAULTS = {
    "ranges halved": (
        "calibrate.py",
        "        ranges=used.ranges(),",
        "        ranges={name: (low / 2, high / 2) for name, (low, high) in used.ranges().items()},",
    ),
    "zero points forgotten": (
        "graphs/passes/quantize.py",
        "else round(-low / float(scale))",
        "else 0",
    ),
    "steps of weights halved": (
        "graphs/passes/quantize.py",
        "lambda: _scales(tensor.numpy(), axis, scheme),",
        "lambda: _scales(tensor.numpy(), axis, scheme) / 2,",
    ),
}


@pytest.fixture(scope="module")
def random_encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small checkpoint, and texts for it."""
    folder = tmp_path_factory.mktemp("random")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(tiny.WORDS, size=int(rng.integers(2, 20)))) for _ in range(24)]
    (folder / "texts.txt").write_text("\n".join(texts))
    return tiny.checkpoint(folder / "model"), folder / "texts.txt"


@pytest.mark.parametrize("fault", [None, *INT8_FAULTS])
def test_a_fault_planted_in_what_makes_int8_breaks_the_promise(
    fault: str | None, random_encoder: tuple[Path, Path], tmp_path: Path
) -> None:
    model, texts = random_encoder
    done = run(
        *("build", str(model), "-o", str(tmp_path / "out"), "--precision", "int8", "--target", "onnxruntime"),
        *("--data", str(texts), "--reference", "own-graph", "--json"),
        sources=SOURCES if fault is None else planted(tmp_path, *INT8_FAULTS[fault]),
        ALULA_CACHE=str(tmp_path / "cache"),
    )
    assert done.returncode == (0 if fault is None else 3), done.stderr
    first = json.loads(done.stdout)["rows"][0]
    assert (first["metric"], first["limit"], first["samples"]) == ("cosine_distance_mean", 0.004, 24)
    assert first["passed"] == (fault is None)


def test_a_checkpoint_with_a_changed_weight_has_no_golden_outputs(
    minilm_folder: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(minilm_folder, model)
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-4:] = b"\x00\x00\x80\x3f"
    weights.write_bytes(content)
    done = run("build", str(model), "-o", str(tmp_path / "out"), "--reference", "golden")
    assert done.returncode == 2
    assert "no golden outputs ship for model" in done.stderr
