"""Muon: momentum whose matrices are made orthogonal before they are stepped along, for what multiplies hidden states.

K. Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024 (https://kellerjordan.github.io/posts/muon):
five steps of a Newton-Schulz iteration of fifth degree bring the singular values of a matrix near one. A step is made
as long as one of AdamW, 0.2 for a root mean square, so that one rate serves both: J. Liu et al., Muon is scalable for
LLM training, 2025 (arXiv:2502.16982).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_A, _B, _C = 3.4445, -4.7750, 2.0315
_STEPS = 5
_ROOT_MEAN_SQUARE = 0.2


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices [count, rows, columns] with the same singular vectors, and singular values of about 0.7 to 1.2."""
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).bfloat16()
    for _ in range(_STEPS):
        square = x @ x.transpose(1, 2)
        x = _A * x + torch.baddbmm(square, square, square, beta=_B, alpha=_C) @ x
    found: Tensor = x.transpose(1, 2) if tall else x
    return found


class Muon(torch.optim.Optimizer):
    """Steps along orthogonal momentum; matrices of one shape, the gradients of which lie together, are one product."""

    def __init__(
        self, params: Iterable[nn.Parameter], *, lr: float, momentum: float = 0.95, weight_decay: float = 0.05
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # nobody has a closure
        """One step of every parameter that has a gradient; a convolution is a matrix with a row for each output."""
        for group in self.param_groups:
            alike: dict[tuple[int, int], list[nn.Parameter]] = {}
            for each in group["params"]:
                if each.grad is not None:
                    alike.setdefault((len(each), each[0].numel()), []).append(each)
            for (rows, columns), found in alike.items():
                self._together(found, rows, columns, group)

    def _together(self, found: list[nn.Parameter], rows: int, columns: int, group: dict[str, Any]) -> None:
        grads = [each.grad for each in found if each.grad is not None]
        kept = [self._kept(each) for each in found]
        torch._foreach_lerp_(kept, grads, 1 - group["momentum"])
        # Nesterov's: the gradient once more, ahead of the momentum.
        ahead = torch._foreach_lerp(grads, kept, group["momentum"])
        steps = orthogonal(torch.stack([each.reshape(rows, columns) for each in ahead])).float()
        weights: list[Tensor] = [*found]
        rate = group["lr"] * _ROOT_MEAN_SQUARE * max(rows, columns) ** 0.5
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        parts = [step.reshape(each.shape) for step, each in zip(steps, found, strict=True)]
        torch._foreach_add_(weights, parts, alpha=-rate)

    def _kept(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum"]
        return momentum
