"""Advice on the update of an optimizer is possible: torch accepts what is advised."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

import gpuledger
from gpuledger.analyze.overview.finding import Finding
from gpuledger.analyze.overview.findings import find_findings
from gpuledger.analyze.overview.update_advice import update_advice
from gpuledger.collect.memory.optimizer_facts import describe_optimizers
from gpuledger.model.manifest import OptimizerFacts

pytestmark = pytest.mark.torch

ALL = {name: one for name, one in vars(torch.optim).items() if isinstance(one, type) and issubclass(one, Optimizer)}
WEIGHTS = 200_000


class Own(torch.optim.Adam):
    """An optimizer of the program: it takes the options of Adam, and its update is its own."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                for one in group["params"]:
                    one.sub_((one.grad * 2 + one * 3) * 0.1)


class Renamed(torch.optim.Adam):
    """Adam with another name."""


def facts_of(optimizer: Optimizer) -> OptimizerFacts:
    (described,) = describe_optimizers([optimizer])
    return OptimizerFacts.from_json(described)


def accepts(kind: Any, weight: torch.Tensor, **options: Any) -> bool:
    """Return whether torch takes a step with these options."""
    try:
        optimizer = kind([weight], lr=0.1, **options)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    except (TypeError, RuntimeError, ValueError):
        return False
    return True


@pytest.mark.parametrize("name", sorted(set(ALL) - {"Optimizer", "SparseAdam", "LBFGS"}))
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_fused_is_advised_where_torch_has_it(name: str, dtype: torch.dtype) -> None:
    weight = torch.zeros(8, 8, dtype=dtype, requires_grad=True)
    try:
        optimizer = ALL[name]([weight], lr=0.1)  # type: ignore[call-arg]
    except ValueError:
        pytest.fail(f"{name} does not take these parameters")
    advised = update_advice((facts_of(optimizer),))
    assert (advised is not None and "fused=True" in advised.action) is accepts(ALL[name], weight, fused=True)


@pytest.mark.parametrize("name", [name for name, one in ALL.items() if "foreach" in inspect.signature(one).parameters])
def test_foreach_is_left_out_where_it_is_in_use_and_nothing_is_fused(name: str) -> None:
    optimizer = ALL[name]([torch.zeros(8, 8, requires_grad=True)], lr=0.1, foreach=True)  # type: ignore[call-arg]
    advised = update_advice((facts_of(optimizer),))
    assert advised
    is_fused = "fused" in inspect.signature(ALL[name]).parameters
    assert advised.action == (
        f"use the fused form of {name} (fused=True)" if is_fused else f"use {name} with foreach=False"
    )
    assert ("leave foreach=True out" in advised.advice) is is_fused


def test_what_excludes_a_form_or_uses_it_already_gets_no_advice() -> None:
    weight = torch.zeros(8, requires_grad=True)
    adam = torch.optim.Adam
    for optimizer in (adam([weight], fused=True), adam([weight], differentiable=True), Own([weight])):
        assert update_advice((facts_of(optimizer),)) is None
    assert update_advice(()) is None
    advised = update_advice((facts_of(Renamed([weight])),))
    assert advised
    assert advised.action == "use the fused form of Renamed (fused=True)"


def test_on_a_gpu_foreach_is_the_default_and_adagrad_is_not_fused() -> None:
    options = {"step_module": "torch.optim.adagrad", "has": ("foreach", "fused", "differentiable")}
    found = update_advice((OptimizerFacts(name="Adagrad", devices=("cuda",), **options),))  # type: ignore[arg-type]
    assert found
    assert found.action == "use Adagrad with foreach=False"
    without = OptimizerFacts(name="Adagrad", devices=("cuda",), without=("foreach",), **options)  # type: ignore[arg-type]
    assert update_advice((without,)) is None


def findings_of(directory: Path, kind: Any, **options: Any) -> list[Finding]:
    """Return the findings of a program without modules that passes a closure to its optimizer."""
    data = torch.linspace(0, 1, WEIGHTS)
    weight = torch.zeros(WEIGHTS, requires_grad=True)
    optimizer = kind([weight], lr=1e-3, **options)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((weight * data - torch.sin(6 * data)) * torch.cos(data)).square().mean()
        loss.backward()
        return loss

    with gpuledger.record(out=directory / "run", devices="cpu") as recording:
        for _ in range(3):
            closure()
            optimizer.step(closure)
    return list(find_findings(recording.run().rank()))


def names_of(findings: list[Finding]) -> set[str]:
    return {one.title.rpartition(" are ")[0] or one.title for one in findings}


@pytest.mark.parametrize("name", ["SGD", "RMSprop", "Own"])
def test_what_a_closure_allocates_has_no_fused_form(name: str, tmp_path: Path) -> None:
    found = findings_of(tmp_path, Own if name == "Own" else ALL[name])
    assert "Temporaries of the optimizer" not in names_of(found)
    assert not any("fused" in one.action + one.advice or "foreach" in one.action for one in found)
    assert any("alone uses" in one.title and "test_update_advice.py" in one.title for one in found)


def test_an_update_without_a_fused_form_is_advised_without_foreach(tmp_path: Path) -> None:
    weights = [torch.zeros(WEIGHTS, requires_grad=True) for _ in range(8)]
    optimizer = torch.optim.NAdam(weights, foreach=True)
    with gpuledger.record(out=tmp_path / "run", devices="cpu") as recording:
        for _ in range(3):
            for weight in weights:
                weight.grad = torch.ones(WEIGHTS)
            optimizer.step()
    found = find_findings(recording.run().rank())
    (advised,) = (one for one in found if one.title.startswith("Temporaries of the optimizer"))
    assert advised.action == "use NAdam with foreach=False"
    assert not any(one.action.startswith("reduce tensors outside modules") for one in found)
