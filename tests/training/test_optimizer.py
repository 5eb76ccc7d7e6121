"""Muon steps along matrices with even singular values, each as if it were alone; ready batches come in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from training.muon import Muon, orthogonal
from training.ready import Ready


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 16, 64), (2, 64, 16)])
def test_singular_values_become_even_and_singular_vectors_stay(shape: tuple[int, ...]) -> None:
    given = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = orthogonal(given).float()
    assert found.shape == given.shape
    values = torch.linalg.svdvals(found)
    assert 0.3 < float(values.min()) < float(values.max()) < 1.35
    left, _, right = torch.linalg.svd(given, full_matrices=False)
    turned = left.transpose(1, 2) @ found @ right.transpose(1, 2)
    beside = turned - torch.diag_embed(turned.diagonal(dim1=1, dim2=2))
    assert float(beside.abs().max()) < 0.1


def test_a_step_is_as_long_as_one_of_adamw_whatever_the_gradient_s_size() -> None:
    steps = []
    for scale in (1.0, 1000.0):
        matrix = nn.Parameter(torch.zeros(64, 256))
        matrix.grad = scale * torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
        Muon([matrix], lr=0.01).step()
        steps.append(matrix.detach().clone())
    assert float(steps[0].square().mean().sqrt()) == pytest.approx(0.01 * 0.2, rel=0.2)
    torch.testing.assert_close(steps[0], steps[1], rtol=0.05, atol=2e-4)


def test_matrices_of_one_shape_step_as_each_of_them_alone() -> None:
    chance = torch.Generator().manual_seed(2)
    start = [torch.randn(shape, generator=chance) for shape in ((8, 16), (8, 16), (16, 8), (24, 4, 2, 2))]
    pulls = [torch.randn(each.shape, generator=chance) for each in start]
    together = [nn.Parameter(each.clone()) for each in start]
    alone = [nn.Parameter(each.clone()) for each in start]
    optimizers = [Muon(together, lr=0.02), *(Muon([each], lr=0.02) for each in alone)]
    for _ in range(3):
        for one, other, pull in zip(together, alone, pulls, strict=True):
            one.grad, other.grad = pull.clone(), pull.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other, before in zip(together, alone, start, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-3)
        assert not torch.allclose(one, before, atol=1e-3)


def counted(most: int | None, hold: threading.Event | None = None) -> Iterator[Any]:
    number = 0
    while most is None or number < most:
        yield number
        number += 1
    if hold is not None:
        hold.wait(10)
        raise ValueError("a worker failed")


def test_batches_come_in_order_and_each_once_where_it_is_said_so() -> None:
    with Ready(counted(30), times=1) as ready:
        assert list(ready) == list(range(30))
    assert (ready.fresh, ready.again) == (30, 0)


def test_where_none_is_ready_earlier_ones_come_again_but_not_for_ever() -> None:
    hold = threading.Event()
    with Ready(counted(3, hold), times=3) as ready:
        found = [next(ready) for _ in range(9)]
        assert found[:3] == [0, 1, 2]
        assert sorted(found) == sorted([0, 1, 2] * 3)
        assert (ready.fresh, ready.again) == (3, 6)
        began = time.monotonic()
        threading.Timer(0.1, hold.set).start()
        with pytest.raises(ValueError, match="a worker failed"):
            next(ready)
        assert time.monotonic() - began > 0.05


def test_leaving_stops_the_taking_of_batches_without_an_end() -> None:
    with Ready(counted(None), times=1) as ready:
        assert next(ready) == 0
    assert not ready._thread.is_alive()
