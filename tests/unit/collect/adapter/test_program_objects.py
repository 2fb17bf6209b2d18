"""Modules and optimizers are read without a line of the program's code running."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from refusing import ASKED, OF_CONTAINERS, forbidden, ran, refusing
from torch import nn

from gpuledger import record
from gpuledger.collect.adapter.held_tensors import WeakIdentitySet
from gpuledger.collect.adapter.program_objects import (
    attributes_of,
    buffers_of,
    children_of,
    class_name,
    holds_tensors,
    is_exactly,
    known_sizes,
    module_of_class,
    modules_below,
    named_parameters,
    parameter_groups,
    parameters_of,
    state_of,
    tensors_in,
)
from gpuledger.collect.attribution.module_registry import ModuleRegistry

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def nothing_runs() -> Iterator[None]:
    ran.clear()
    yield
    assert ran == []


# -- modules ----------------------------------------------------------------------------------------------------------


OF_CLASSES = ("__iter__", "__len__", "__hash__", "__eq__", "__bool__", "__contains__", "__getitem__", "__repr__")


class Refuses(nn.Module):
    """Whatever can be overridden is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("absent", None)
        self.register_parameter("none", None)
        self.child = nn.Linear(2, 1)
        self.nobody = None


OF_MODULES = ("parameters", "buffers", "modules", "children")

for _name in (*OF_MODULES, *(f"named_{name}" for name in OF_MODULES), "state_dict", *OF_CLASSES):
    setattr(Refuses, _name, forbidden(_name))


def test_an_overriding_module_is_read() -> None:
    module = Refuses()
    attributes = object.__getattribute__(module, "__dict__")
    for name in ("_parameters", "_buffers", "_modules"):
        setattr(Refuses, name, property(forbidden(name)))
    Refuses.__getattr__ = forbidden("__getattr__")  # type: ignore[assignment]
    Refuses.__getattribute__ = forbidden("__getattribute__")  # type: ignore[method-assign, assignment]
    try:
        assert [name for name, _ in parameters_of(module)] == ["weight"]
        assert [name for name, _ in buffers_of(module)] == ["mean"]
        assert [name for name, _ in children_of(module)] == ["child"]
        assert [name for _, name, _ in modules_below(module)] == ["", "child"]
        assert holds_tensors(module)
        assert parameters_of(module)[0][1] is attributes["_parameters"]["weight"]
    finally:
        del Refuses.__getattribute__, Refuses.__getattr__
        for name in ("_parameters", "_buffers", "_modules"):
            delattr(Refuses, name)


def test_modules_are_found_as_torch_finds_them() -> None:
    shared = nn.Linear(2, 2)
    top = nn.ModuleDict(
        {"a": nn.Sequential(shared, nn.ReLU()), "b": shared, "c": nn.ModuleList([nn.Sequential(shared)])}
    )
    top["a"].again = top["c"]
    found = list(modules_below(top))
    assert [module for _, _, module in found] == [module for _, module in top.named_modules()]
    assert all(parent is None or dict(children_of(parent))[name] is module for parent, name, module in found)
    assert list(named_parameters(top)) == list(top.named_parameters())


def test_a_module_that_holds_itself_ends() -> None:
    top = nn.Sequential(nn.ReLU())
    object.__getattribute__(top, "_modules")["self"] = top
    assert [name for _, name, _ in modules_below(top)] == ["", "0"]


def test_a_module_without_its_dictionaries_holds_nothing() -> None:
    class Unfinished(nn.Module):
        def __init__(self) -> None:
            """Leave out what every module calls first."""

    module = Unfinished()
    assert (parameters_of(module), buffers_of(module), children_of(module)) == ([], [], [])


def test_scripted_modules_keep_their_weights() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    scripted = torch.jit.script(model)
    assert [name for _, name, _ in modules_below(scripted)] == ["", "0", "1"]
    held = {
        (of, name)
        for _, of, module in modules_below(scripted)
        for name, _ in parameters_of(module) + buffers_of(module)
    }
    assert held == {tuple(name.rsplit(".", 1)) for name in model.state_dict()}


def test_lazy_modules_are_met_before_and_after_they_know_their_shapes() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    registry = ModuleRegistry()
    number = registry.register(model)
    assert registry.register(model) == number
    model(torch.ones(1, 2))
    assert [tuple(tensor.shape) for _, tensor in parameters_of(model[0])] == [(3, 2), (3,)]
    assert {held().shape for held, _, _ in registry.parameters} == {(3, 2), (3,)}


def test_a_parametrized_module_is_read_without_computing_its_weight() -> None:
    class Counts(nn.Module):
        calls = 0

        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            Counts.calls += 1
            return weight * 2

    layer = nn.Linear(2, 2)
    nn.utils.parametrize.register_parametrization(layer, "weight", Counts())
    before = Counts.calls
    assert len([1 for _, _, module in modules_below(layer) for _ in parameters_of(module)]) == 2
    assert Counts.calls == before


# -- optimizers -------------------------------------------------------------------------------------------------------


def test_an_optimizer_is_read_through_properties_and_subclasses() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([{"params": [parameter], "lr": 0.1}])
    parameter.grad = torch.ones(2)
    optimizer.step()
    kind = refusing(torch.optim.Adam, "__hash__", "__eq__", "__bool__", "__len__", "state_dict", "__getattr__")
    for name in ("param_groups", "state"):
        setattr(kind, name, property(forbidden(name), lambda *_: None))
    object.__setattr__(optimizer, "__class__", kind)
    assert [[one is parameter for one in group] for group in parameter_groups(optimizer)] == [[True]]
    ((owner, values),) = state_of(optimizer)
    assert owner is parameter
    assert set(values) == {"step", "exp_avg", "exp_avg_sq"}
    found = WeakIdentitySet()
    found.add(optimizer)
    found.add(optimizer)
    assert [one is optimizer for one in found] == [True]


def test_an_unfinished_optimizer_holds_nothing() -> None:
    optimizer = torch.optim.SGD.__new__(torch.optim.SGD)
    assert parameter_groups(optimizer) == []
    assert state_of(optimizer) == []


def test_groups_of_other_kinds_are_read() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    kind, items = refusing(dict, *OF_CONTAINERS), refusing(list, *ASKED)
    group: Any = dict.__new__(kind)
    dict.update(group, params=list.__new__(items))
    list.append(dict.__getitem__(group, "params"), parameter)
    optimizer.param_groups = [group]
    assert [[one is parameter for one in held] for held in parameter_groups(optimizer)] == [[True]]


# -- what is kept of the program --------------------------------------------------------------------------------------


def test_the_set_lets_go_of_what_has_ended() -> None:
    found = WeakIdentitySet()
    module = nn.ReLU()
    found.update([module])
    ended = weakref.ref(module)
    assert found
    del module
    gc.collect()
    assert ended() is None
    assert not found
    assert list(found) == []


@pytest.mark.parametrize("swapped", ["weight", "bias"])
def test_parameters_of_a_recorded_model_can_be_swapped(swapped: str, tmp_path: Path) -> None:
    """``torch.utils.swap_tensors`` refuses a tensor to which there is a weak reference."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record("swapping", out=tmp_path / "swapping"):
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        old = getattr(model, swapped)
        new = nn.Parameter(torch.zeros_like(old))
        torch.utils.swap_tensors(old, new)
        assert getattr(model, swapped) is old
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert getattr(model, swapped).grad is not None


def test_a_distributed_tensor_is_read_by_its_local_part(tmp_path: Path) -> None:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    from gpuledger.collect.attribution.tensor_observations import storage_place

    distributed.init_process_group("gloo", store=vars(distributed)["HashStore"](), rank=0, world_size=1)
    try:
        tensor = distribute_tensor(torch.ones(4, 2), init_device_mesh("cpu", (1,)), [Shard(0)])
        assert isinstance(tensor, DTensor)
        assert [one is tensor for one in tensors_in({"a": [tensor]})] == [True]
        assert storage_place(tensor) == (-1, tensor.to_local().untyped_storage().data_ptr())
    finally:
        distributed.destroy_process_group()


class _Answers(type):
    """A metaclass that notes every question."""

    def __hash__(cls) -> int:
        ran.append("hash")
        return 1

    def __eq__(cls, other: object) -> bool:
        ran.append("eq")
        return cls is other

    def __getattribute__(cls, name: str) -> Any:
        ran.append(name)
        return type.__getattribute__(cls, name)


class _Plain:
    """Its instances have a ``__dict__``, which a class that defines this name itself does not show."""


class _Hidden(_Plain, metaclass=_Answers):
    def __init__(self) -> None:
        self.inner = 1

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        ran.append("__dict__")
        return {}


def test_a_class_is_read_without_its_metaclass() -> None:
    thing = _Hidden()
    kind = type(thing)
    ran.clear()
    assert class_name(kind) == "_Hidden"
    assert module_of_class(kind) == __name__
    assert module_of_class(ValueError) == "builtins"
    assert not is_exactly(thing, int, nn.Linear)
    assert is_exactly(3, str, int)
    assert not is_exactly(True, str, int)


def test_attributes_are_read_past_a_property_named_dict() -> None:
    thing = _Hidden()
    ran.clear()
    assert attributes_of(thing) == {"inner": 1}
    assert attributes_of(nn.Linear(1, 1))["in_features"] == 1
    assert attributes_of(3) == attributes_of(_Hidden) == {}


def test_sizes_end_where_a_nested_tensor_has_lengths() -> None:
    rows = [torch.ones(2, 8), torch.ones(3, 8)]
    assert known_sizes(torch.ones(4, 5)) == (4, 5)
    assert known_sizes(torch.nested.nested_tensor(rows, layout=torch.jagged)) == (2,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once per process that this layout is a prototype
        assert known_sizes(torch.nested.nested_tensor(rows)) == ()
