"""What transformers says of SmolLM2-135M-Instruct, the GGUF file that an ordinary package brings."""

from __future__ import annotations

from collections.abc import Mapping

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Prompts, three of the first logits, and the greedy tokens behind it, of transformers 5.24 in fp32 from that file,
# loaded by its own reader. Nowhere are the two best logits closer than 5e-3.
PROMPTS: Mapping[str, tuple[list[int], Mapping[int, float], list[int]]] = {
    "The capital of France is": (
        [504, 3575, 282, 4649, 314],
        {7042: 17.3713, 260: 14.8886, 4528: 13.245},
        [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33,
         40, 29, 32, 33, 29, 34, 34, 216, 33, 34, 42, 33],
    ),
    "def fibonacci(n):": (
        [1604, 3987, 46477, 24, 94, 727, 2367],
        {753: 21.8102, 3987: 21.7726, 1003: 21.203},
        [753, 3987, 46477, 24, 94, 727, 466, 585, 304, 1758, 216, 32,
         42, 7396, 1003, 216, 33, 466, 4698, 304, 1758, 216, 33, 42],
    ),
    "Once upon a time, in a small village,": (
        [6403, 1980, 253, 655, 28, 281, 253, 1165, 6560, 28],
        {665: 14.663, 253: 13.0149, 260: 10.985},
        [665, 436, 253, 9357, 1573, 267, 19341, 3365, 3906, 103, 266, 30,
         3906, 103, 266, 436, 1343, 327, 650, 9077, 6236, 284, 650, 2606],
    ),
    "Water boils at": (
        [12615, 36411, 418],
        {216: 21.545, 253: 21.3142, 1130: 21.1762},
        [216, 33, 32, 32, 4742, 51, 28, 527, 314, 253, 3468, 20590,
         30, 198, 198, 504, 6714, 282, 260, 2817, 5118, 288, 260, 2817],
    ),
    "List three primary colours:": (
        [6106, 1296, 3003, 14797, 42, 198, 33, 30],
        {3950: 10.692, 10062: 9.4008, 1903: 8.782},
        [3950, 42, 216, 34, 37, 21, 282, 260, 2719, 2380, 26619, 198,
         34, 30, 10062, 42, 216, 39, 37, 21, 282, 260, 2719, 2380],
    ),
}  # fmt: skip
