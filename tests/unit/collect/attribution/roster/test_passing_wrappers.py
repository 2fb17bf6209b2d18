"""Wrappers that are made for each use of a model share ids, and the model keeps its own name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gpuledger.analyze.module_paths import in_containers, module_rows, qualified_names, with_names, without_wrappers
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.model.journal.journal import Part

pytestmark = pytest.mark.torch


class Perturbed(nn.Module):
    """A wrapper, as a solver of equations makes one in each call."""

    def __init__(self, base_func: nn.Module) -> None:
        super().__init__()
        self.base_func = base_func

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_func(x)


class Reversed(Perturbed):
    pass


class Seen:
    """Registers modules, as if the program called them, and reads what was written."""

    def __init__(self) -> None:
        self.registry = ModuleRegistry()
        self.part = Part()

    def call(self, *modules: nn.Module, inside: int = -1) -> list[int]:
        numbers = [self.registry.register(one, inside=inside) for one in modules]
        for number in numbers if inside < 0 else ():
            self.registry.note_called(number)
        return numbers

    def rows(self) -> tuple[list[str], list[str]]:
        """Return the paths of modules, and the names of parameters."""
        self.registry.drain(self.part)
        facts: dict[str, Any] = self.part.facts
        named = with_names(self.part.modules, facts.get("root_names", ()), ())
        called = without_wrappers(named, facts["called_roots"], facts.get("wrapped_models", ()))
        placed = in_containers(*called, facts.get("contained_roots", ()))
        owners = {name_id: owner for _, name_id, owner in self.registry.parameters}
        return [row["path"] for row in module_rows(*placed)], qualified_names(self.part.names, owners, *placed)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2, bias=False))


@pytest.mark.parametrize("is_known", [True, False])
def test_wrappers_that_come_and_go_share_ids_and_are_around_no_model(is_known: bool, model: nn.Module) -> None:
    """Whether the model was known before the first of them, or was found in it."""
    seen = Seen()
    if is_known:
        seen.registry.register(model)
    numbers = [seen.call(Perturbed(Reversed(model))) for _ in range(4)]
    assert numbers == [numbers[0]] * 4
    wrappers = ["Perturbed", "Perturbed.base_func"]
    own = ["Sequential", "0"]
    if is_known:
        assert seen.rows() == ([*own, *wrappers], ["0.weight"])
    else:
        assert seen.rows() == ([*wrappers, *own], ["0.weight"])


def test_one_wrapper_or_several_that_are_alive_are_modules_of_their_own(model: nn.Module) -> None:
    seen = Seen()
    kept = [Perturbed(model)]
    seen.call(*kept)
    assert seen.rows()[0] == ["Perturbed", "base_func", "base_func.0"]
    kept.append(Perturbed(model))
    kept.append(Perturbed(model))
    numbers = seen.call(*kept)
    assert len(set(numbers)) == 3
    assert seen.registry.path_of(seen.registry.register(model)) == "base_func"


def test_several_wrappers_at_a_time_leave_their_ids_to_as_many(model: nn.Module) -> None:
    seen = Seen()
    rounds = []
    for _ in range(4):
        alive = [Perturbed(model) for _ in range(3)]
        rounds.append(set(seen.call(*alive)))
        del alive
    assert len(rounds[0]) == 3
    assert rounds[1:] == rounds[:1] * 3


def test_wrappers_around_other_models_or_of_other_classes_have_other_ids(model: nn.Module) -> None:
    seen, other = Seen(), nn.Linear(2, 2)
    numbers = [
        seen.call(make(one))[0]
        for _ in range(3)
        for make, one in ((Perturbed, model), (Reversed, model), (Perturbed, other))
    ]
    assert numbers == numbers[:3] * 3
    assert len(set(numbers)) == 3
    paths, _ = seen.rows()
    assert {"Perturbed", "Reversed", "Perturbed#2", "Sequential.0", "Linear"} <= set(paths)


def test_a_wrapper_with_weights_is_a_model(model: nn.Module) -> None:
    """As a new head for each fold, on the same body."""
    seen = Seen()
    numbers = [seen.call(nn.Sequential(model, nn.Linear(2, 2)))[0] for _ in range(3)]
    assert len(set(numbers)) == 3


def test_wrappers_inside_a_model_share_an_id_where_they_are_met(model: nn.Module) -> None:
    """A layer solves an equation with a part of it, so that each of its calls makes a wrapper."""
    seen, holder = Seen(), nn.ModuleDict({"function": model})
    [inside] = seen.call(holder)
    numbers = [seen.call(Perturbed(model), inside=inside)[0] for _ in range(3)]
    assert numbers == [numbers[0]] * 3
    assert seen.rows() == (["ModuleDict", "function", "function.0", "Perturbed"], ["function.0.weight"])


def test_a_model_in_wrappers_can_be_a_part_of_another_one(model: nn.Module) -> None:
    seen = Seen()
    seen.call(Perturbed(model))
    seen.call(Perturbed(model))
    holder = nn.ModuleDict({"function": model, "head": nn.Linear(2, 2)})
    seen.call(holder)
    paths, names = seen.rows()
    assert paths == ["Perturbed", "function", "function.0", "ModuleDict", "head"]
    assert names == ["function.0.weight", "head.weight", "head.bias"]


def test_an_id_of_a_wrapper_that_was_freed_is_not_taken_for_gone(model: nn.Module) -> None:
    """Its calls are steps, of one module."""
    seen = Seen()
    [number] = seen.call(Perturbed(model))
    assert seen.registry.is_gone(number)
    wrapper = Perturbed(model)
    assert seen.call(wrapper) == [number]
    assert not seen.registry.is_gone(number)
    del wrapper
    assert seen.registry.is_gone(number)
