"""Why a graph did not become an engine, in words that lead to its node and to a cure. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_CURES: tuple[tuple[str, str], ...] = (
    (
        r"not supported by a dedicated kernel",
        "attention needs fp16 or bf16 and a head size of 32, 64, 72 or 128 there; build with --precision fp16, "
        "or with --opset 17, which writes attention out",
    ),
    (
        r"import initializer|convertOnnxWeights|Failed to open|cannot be found|not a regular file",
        "keep the .onnx file and its .data file together, under their own names",
    ),
    (r"at least one output", "is that an ONNX file?"),
    (
        r"(?i)data-dependent|NonZero|shape tensor",
        "sizes that depend on values are not taken; give the axis as an input's own",
    ),
    (
        r"No importer registered|UNSUPPORTED_NODE|[Pp]lugin",
        "it does not know the operator; a lower --opset may write it in older ones, or build for --target onnxruntime",
    ),
    (
        r"(?i)opset version|IR version",
        "it reads older graphs only; build with a lower --opset, such as 17",
    ),
    (
        r"(?i)workspace|could not find any implementation",
        "no kernel within the limits: raise --workspace, or keep that layer in another precision (--precision mixed)",
    ),
    (
        r"(?i)out ?of ?memory",
        "raise --workspace where one was given; else lower the largest sizes of the profile or --level, or free the "
        "GPU's memory",
    ),
    (
        r"(?i)same input types|same type|type mismatch|types of",
        "the types at this node do not fit; the file itself may be at fault: try --target onnxruntime",
    ),
    (
        r"(?i)broadcast|conformable|dimensions? (mismatch|must)",
        "the sizes at this node do not fit; the file itself may be at fault: try --target onnxruntime",
    ),
    (
        r"nvinfer_lean",
        "portable engines carry TensorRT's lean runtime: pip install tensorrt-lean of the same version",
    ),
    (
        r"CUDA_SUCCESS|no CUDA-capable device|CUDA initialization failure|insufficient for CUDA|cudaErrorNoDevice",
        "that needs a GPU and its driver, and none answers here",
    ),
    (
        r"(?i)optimization profile|kMIN|kMAX",
        "the profile does not fit the graph: look at --batch, --length and --axis",
    ),
)

# What the library adds about itself.
_NOISE = re.compile(
    r"(; )?Error Code 1: Cuda Runtime \(In catchCudaError.*?\(cudaError \d+: [^)]*\)\)"
    r"|\bIn [\w:]+ at /\S*"
    r"|\[?\b\w*\.(cpp|h|cc)\b(:\w*)*:?\d*\]?"
    r"|I[A-Z]\w+::\w+: |Error Code \d+: |Invalid Node - \S+|\w+\] (?=\w)"
    r"|(API Usage|Shape|Internal) Error \(|Myelin \("
    r"|^Assertion failed: |\bcreator && "
)

NO_REASON = "TensorRT gave no reason"

# Names as our passes write them: the layer is what comes before the last slash.
_PLACE = re.compile(r"[\[\(]?[Nn]ode[ :]+(?:name: )?['\"]?(?P<name>[\w./:+-]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One error of the parser: which node of the file, of which kind, and what is wrong with it."""

    text: str
    node: str = ""
    kind: str = ""


def refusal(graph: str, faults: Sequence[Fault], said: Sequence[str], runtime: str) -> str:
    """One line: what could not be compiled, the node and its layer, the reason, the cure."""
    first = faults[0] if faults else Fault(text=next(iter(said), NO_REASON), node=_node_in(said))
    text = one_line(first.text) or NO_REASON
    at = f" at node {first.node!r}" if first.node else ""
    kind = f" ({first.kind})" if first.kind else ""
    layer = layer_of(first.node)
    of = f" of layer {layer!r}" if layer else ""
    more = f"; {len(faults) - 1} more nodes are refused" if len(faults) > 1 else ""
    cure = cure_for(" ".join((first.kind, text, *said)))
    return f"{runtime} cannot compile {graph}{at}{kind}{of}: {text}{more}" + (f"; {cure}" if cure else "")


def cure_for(text: str) -> str:
    """What is likely to help; empty where nothing is known."""
    return next((cure for pattern, cure in _CURES if re.search(pattern, text)), "")


def layer_of(node: str) -> str:
    """The layer of the model that a node was written for: its name without the last part."""
    return node.rpartition("/")[0] if "/" in node else ""


def one_line(text: str) -> str:
    """A message without line breaks and without the places in the library's source."""
    kept = re.sub(r"\s+", " ", text)
    kept = re.sub(r"\s+", " ", _NOISE.sub("", kept))
    return kept.replace("( ", "(").replace(" )", ")").replace(". )", ")").strip(" :;,.")


def _node_in(said: Sequence[str]) -> str:
    for line in said:
        if (found := _PLACE.search(line)) is not None:
            return found["name"]
    return ""
