"""Observed tensors: whose storage is where, noted once and in every shape a program hands tensors on."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.tensor_observations import TensorObservations, storage_place
from gpuledger.model.accounts import Identity
from gpuledger.model.journal.journal import Part

pytestmark = pytest.mark.torch


@dataclass
class Batch:
    ids: Any
    mask: Any = None


Pair = namedtuple("Pair", "left right")


@pytest.fixture
def observed() -> TensorObservations:
    return TensorObservations(ModuleRegistry(), lambda _devices: {-1: (3, 2)})


def rows(observed: TensorObservations) -> list[tuple[int, int, int]]:
    """Return kind, address and module of what was seen."""
    part = Part()
    observed.drain(part)
    found = part.arrays()
    if not found:
        return []
    assert set(found["identities.alloc_count"].tolist()) == {3}
    columns = (found[f"identities.{name}"].tolist() for name in ("kind", "address", "module_id"))
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: [x],
        lambda x: {"a": (1, x)},
        lambda x: Batch(x),
        lambda x: Pair(None, [x]),
        lambda x: [[x]],
        lambda x: x[2:].view(2, 1),
    ],
)
def test_inputs_are_found_in_what_a_module_is_called_with(observed: TensorObservations, wrap: Any) -> None:
    x = torch.zeros(4)
    observed.see_inputs(7, (wrap(x),), {"flag": True})
    assert rows(observed) == [(Identity.INPUT, x.data_ptr(), 7)]


@pytest.mark.parametrize(
    "strange",
    [torch.zeros(3).to_sparse(), torch.zeros(3, device="meta"), torch.zeros(0), torch.zeros(2, 2).to_mkldnn(), "text"],
    ids=["sparse", "meta", "empty", "mkldnn", "text"],
)
def test_what_has_no_storage_of_its_own_is_passed_by(observed: TensorObservations, strange: Any) -> None:
    observed.see_inputs(0, (strange,))
    assert rows(observed) == []
    assert isinstance(strange, str) or storage_place(strange) is None


def test_weights_are_noted_once_and_again_where_they_move(observed: TensorObservations) -> None:
    model = nn.BatchNorm1d(4)
    observed.registry.register(model)
    observed.see_weights()
    observed.see_new_weights()
    observed.see_new_weights()
    assert sorted(kind for kind, _, _ in rows(observed)) == [Identity.WEIGHT] * 2 + [Identity.BUFFER] * 3
    observed.see_weights()
    assert rows(observed) == []
    model.weight.data = torch.ones(4)
    observed.see_weights()
    assert rows(observed) == [(Identity.WEIGHT, model.weight.data_ptr(), 0)]


def test_an_optimizer_s_state_has_its_parameter_s_name(observed: TensorObservations) -> None:
    model, loose = nn.Linear(2, 2), nn.Parameter(torch.ones(2))
    observed.registry.register(model)
    optimizer = torch.optim.Adam([*model.parameters(), loose])
    assert not observed.knows(optimizer)
    for parameter in (*model.parameters(), loose):
        parameter.grad = torch.ones_like(parameter)
    observed.see_loose_parameters(optimizer)
    assert observed.knows(optimizer)
    assert sum(kind == Identity.GRADIENT for kind, _, _ in rows(observed)) == 3
    observed.see_optimizer(optimizer)
    assert rows(observed) == []
    optimizer.step()
    observed.see_optimizer(optimizer)
    seen = rows(observed)
    assert [module for _, _, module in seen] == [0] * 6 + [-1] * 3
    observed.see_optimizer(optimizer)
    assert rows(observed) == []
    observed.see_optimizer(optimizer, again=True)
    assert rows(observed) == seen


def test_a_device_nobody_records_is_passed_by() -> None:
    observed = TensorObservations(ModuleRegistry(), lambda _devices: {0: (0, 0)})
    observed.see_inputs(0, torch.zeros(3))
    assert rows(observed) == []
