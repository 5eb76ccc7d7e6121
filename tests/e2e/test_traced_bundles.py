"""A model without a module of its own, from checkpoint to bundle through PyTorch's exporter."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from alula.build import BuildRequest, build
from alula.core.profile import Range
from alula.core.progress import Silent

# A trace takes PyTorch ten seconds, most of it symbolic arithmetic on shapes.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def deberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traced") / "deberta"
    return tiny.checkpoint(folder, "deberta-v2", "sequence-classification", num_labels=3, num_hidden_layers=1)


@pytest.mark.parametrize(
    ("target", "precision", "opset"),
    [("openvino", "fp32", None), ("openvino", "bf16", 18), ("onnxruntime", "fp32", 24)],
)
def test_a_traced_model_gives_a_verified_bundle(
    target: str, precision: str, opset: int | None, deberta: Path, tmp_path: Path
) -> None:
    """The report huggingface/transformers#35332: in half precision DeBERTa's mask and scale stayed float32."""
    request = BuildRequest(
        model=str(deberta),
        to=tmp_path / "out",
        target=target,
        precision=precision,
        opset=opset,
        axes={"batch": Range(1, 2, 4), "length": Range(2, 8, 48)},
        use_cache=False,
    )
    bundle = build(request, Silent()).bundle
    assert bundle.verified
    assert bundle.model.family == "traced"
    graph = bundle.engine("encoder").graph
    assert (graph.precision, graph.opset) == (precision, opset or 23)
    checks = {(check.reference, check.metric): check for check in bundle.checks}
    assert checks["pytorch", "label_agreement"].passed
    assert checks["pytorch", "max_error"].worst <= (1e-4 if precision == "fp32" else 5e-2)
