"""The roster: numbers for modules, names for tensors, nothing kept alive."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from gpuledger.collect.attribution.live_objects import Living
from gpuledger.collect.attribution.module_registry import Roster
from gpuledger.model.journal.journal import Part

pytestmark = pytest.mark.torch


def drained(roster: Roster) -> Part:
    part = Part()
    roster.drain(part)
    return part


class DistributedDataParallel(nn.Module):
    """A wrapper by its name: a real one wants a process group."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_numbers_paths_and_parents_are_those_of_named_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    roster = Roster()
    assert roster.enroll(model) == 0
    assert roster.enroll(model[1][0]) == 3
    part = drained(roster)
    assert [entry["path"] for entry in part.modules] == [name for name, _ in model.named_modules()]
    assert [entry["parent"] for entry in part.modules] == [-1, 0, 0, 2, 2]
    assert part.names == [name for name, _ in model.named_parameters()]
    assert drained(roster).modules == []


def test_only_a_wrapper_s_own_pieces_are_left_out() -> None:
    model = nn.ModuleDict({"module": nn.ModuleDict({"_orig_mod": nn.Linear(2, 2)})})
    roster = Roster()
    roster.enroll(torch.compile(DistributedDataParallel(model)))
    part = drained(roster)
    assert [entry["path"] for entry in part.modules] == ["", "", "", "module", "module._orig_mod"]
    assert part.names == ["module._orig_mod.weight", "module._orig_mod.bias"]
    assert [entry["compiled"] for entry in part.modules] == [True, False, False, False, False]


def test_tied_parameters_are_listed_once_and_names_belong_to_their_root() -> None:
    one, two = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    tied = nn.ModuleDict({"first": one, "again": one, "other": nn.Linear(2, 2, bias=False)})
    tied["other"].weight = one.weight
    roster = Roster()
    roster.enroll(tied)
    roster.enroll(two)
    roster.add_loose_parameters(torch.optim.SGD([one.weight]))
    assert drained(roster).names == ["first.weight", "weight"]
    assert [name_id for _, name_id, _ in roster.parameters] == [0, 1]


def test_a_module_that_goes_gives_its_number_to_nobody() -> None:
    roster = Roster()
    module = nn.Linear(2, 2)
    key, kept = id(module), weakref.ref(module)
    assert roster.enroll(module) == 0
    del module
    gc.collect()
    assert kept() is None
    assert roster.enroll(nn.Linear(2, 2)) == 1
    roster.forget_gone()
    assert key not in roster.module_ids or roster.module_ids[key] == 1
    assert roster.parameters[0][0]() is None


def test_bare_modules_made_anew_share_a_number_where_they_are_met() -> None:
    roster = Roster()
    model = nn.Linear(2, 2)
    inside = roster.enroll(model)
    first = roster.enroll(nn.MSELoss(), inside=inside)
    assert roster.enroll(nn.MSELoss(), inside=inside) == first
    assert roster.enroll(nn.L1Loss(), inside=inside) != first
    assert roster.enroll(nn.MSELoss()) != first
    assert [entry["path"] for entry in drained(roster).modules] == ["", "MSELoss", "L1Loss", ""]


def test_one_walk_finds_tensors_gradients_modules_and_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    optimizer, apart = torch.optim.SGD(model.parameters(), lr=1), torch.ones(3)
    walks: list[int] = []
    every = gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda: (walks.append(1), every())[1])
    living = Living()
    assert walks == []
    tensors = {id(tensor) for tensor in living.tensors()}
    modules = {id(thing) for thing in living.modules()}
    assert {id(apart), id(model.weight), id(model.weight.grad)} <= tensors
    assert {id(model), id(optimizer)} <= modules
    assert not tensors & modules
    assert walks == [1]


def test_what_is_alive_is_found_from_its_top_whether_called_or_not() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

    gc.collect()
    model, half = Holder(), nn.Module.__new__(nn.Linear)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    roster = Roster()
    assert optimizer in roster.enroll_alive(Living())
    paths = [(entry["path"], entry["class_name"]) for entry in drained(roster).modules]
    assert ("", "Holder") in paths
    assert ("inner", "Linear") in paths
    assert roster.called_roots == set()
    roster.note_called(roster.module_ids[id(model.inner)])
    assert roster.called_roots == {roster.module_ids[id(model)]}
    assert id(half) not in roster.module_ids
