"""The module registry: numbers for modules, names for tensors, nothing kept alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

from gpuledger.collect.attribution import module_registry
from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.module_registry import MOST_STRANGERS, ModuleRegistry
from gpuledger.collect.attribution.outermost_modules import MOST_OF_CLASS
from gpuledger.collect.variables.names import outer_names_of
from gpuledger.model.journal.journal import Part

pytestmark = pytest.mark.torch


def drained(registry: ModuleRegistry) -> Part:
    part = Part()
    registry.drain(part)
    return part


class DistributedDataParallel(nn.Module):
    """A wrapper by its name: a real one wants a process group."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_numbers_paths_and_parents_are_those_of_named_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(activation := nn.ReLU(), nn.Linear(2, 2)))
    registry = ModuleRegistry()
    assert registry.register(model) == 0
    assert registry.register(activation) == 3
    part = drained(registry)
    assert [entry["path"] for entry in part.modules] == [name for name, _ in model.named_modules()]
    assert [entry["parent"] for entry in part.modules] == [-1, 0, 0, 2, 2]
    assert part.names == [name for name, _ in model.named_parameters()]
    assert drained(registry).modules == []


def test_only_a_wrapper_s_own_pieces_are_left_out() -> None:
    model = nn.ModuleDict({"module": nn.ModuleDict({"_orig_mod": nn.Linear(2, 2)})})
    registry = ModuleRegistry()
    compiled: Any = torch.compile(DistributedDataParallel(model))
    registry.register(compiled)
    part = drained(registry)
    assert [entry["path"] for entry in part.modules] == ["", "", "", "module", "module._orig_mod"]
    assert part.names == ["module._orig_mod.weight", "module._orig_mod.bias"]
    assert [entry["compiled"] for entry in part.modules] == [True, False, False, False, False]


@pytest.mark.parametrize("sharded", [False, True])
def test_paths_do_not_include_the_wrappers_of_activation_checkpointing(sharded: bool) -> None:
    """As in the ``state_dict`` of such a model. ``fully_shard`` gives each module a class of its own."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    apply_activation_checkpointing(model, check_fn=lambda one: isinstance(one, nn.Linear))
    for one in model if sharded else ():
        one.__class__ = type(f"FSDP{type(one).__name__}", (type(one),), {})
    registry = ModuleRegistry()
    registry.register(model)
    part = drained(registry)
    assert [entry["path"] for entry in part.modules] == ["", "0", "0", "1", "1"]
    assert part.names == list(model.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_tied_parameters_are_listed_once_and_names_belong_to_their_root() -> None:
    one, two = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    tied = nn.ModuleDict({"first": one, "again": one, "other": nn.Linear(2, 2, bias=False)})
    tied["other"].weight = one.weight
    registry = ModuleRegistry()
    registry.register(tied)
    registry.register(two)
    registry.add_loose_parameters(torch.optim.SGD([one.weight]), {})
    assert drained(registry).names == ["first.weight", "weight"]
    assert [name_id for _, name_id, _ in registry.parameters] == [0, 1]


def test_a_module_that_goes_gives_its_number_to_nobody() -> None:
    registry = ModuleRegistry()
    module = nn.Linear(2, 2)
    key, kept = id(module), weakref.ref(module)
    assert registry.register(module) == 0
    del module
    gc.collect()
    assert kept() is None
    assert registry.register(nn.Linear(2, 2)) == 1
    registry.forget_gone()
    assert key not in registry.module_ids or registry.module_ids[key] == 1
    assert registry.parameters[0][0]() is None


def test_bare_modules_made_anew_share_a_number_where_they_are_met() -> None:
    registry = ModuleRegistry()
    model = nn.Linear(2, 2)
    inside = registry.register(model)
    first = registry.register(nn.MSELoss(), inside=inside)
    assert registry.register(nn.MSELoss(), inside=inside) == first
    assert registry.register(nn.L1Loss(), inside=inside) != first
    assert registry.register(nn.MSELoss()) != first
    assert [entry["path"] for entry in drained(registry).modules] == ["", "MSELoss", "L1Loss", ""]


def test_modules_that_a_model_gets_after_its_registration_have_their_place_in_it() -> None:
    """As when a part of a model is called while the model is built, or a layer is exchanged before a fine-tuning."""
    model = nn.Sequential(nn.Linear(2, 2))
    registry = ModuleRegistry()
    root = registry.register(model)
    blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model.extend([blocks, nn.ReLU(), nn.Linear(2, 2)])
    last = registry.register(blocks[1], inside=root)
    assert registry.path_of(last) == "1.1"
    assert registry.path_of(registry.register(model[2], inside=last)) == "2"
    assert registry.path_of(registry.register(nn.ReLU(), inside=last)) == "1.1.ReLU"
    part = drained(registry)
    assert [entry["path"] for entry in part.modules] == ["", "0", "1", "1.0", "1.1", "2", "1.1.ReLU"]
    assert [entry["parent"] for entry in part.modules] == [-1, 0, 0, 2, 2, 0, 4]
    assert part.names[2:] == [f"1.{name}" for name, _ in blocks.named_parameters()]


def test_no_parent_is_searched_for_modules_that_are_made_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model, registry = nn.Sequential(nn.Linear(2, 2)), ModuleRegistry()
    inside = registry.register(model)
    searches: list[nn.Module] = []
    monkeypatch.setattr(module_registry, "added_later", lambda top, *_: searches.append(top))
    made = [nn.Linear(2, 2) for _ in range(50)]
    numbers = [registry.register(module, inside=inside) for module in made]
    assert {registry.path_of(number) for number in numbers} == {"Linear"}
    assert len(searches) == MOST_STRANGERS


def test_one_walk_finds_tensors_gradients_modules_and_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    optimizer, apart = torch.optim.SGD(model.parameters(), lr=1), torch.ones(3)
    walks: list[int] = []
    every = gc.get_objects

    def listed(generation: int) -> list[Any]:
        if generation == 2:
            walks.append(1)
        return every(generation)

    monkeypatch.setattr(gc, "get_objects", listed)
    living = LiveObjects()
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
    registry = ModuleRegistry()
    assert optimizer in registry.register_alive(LiveObjects())
    paths = [(entry["path"], entry["class_name"]) for entry in drained(registry).modules]
    assert ("", "Holder") in paths
    assert ("inner", "Linear") in paths
    assert registry.called_roots == set()
    registry.note_called(registry.module_ids[id(model.inner)])
    assert registry.called_roots == {registry.module_ids[id(model)]}
    assert id(half) not in registry.module_ids


def test_parts_that_are_called_before_their_model_is_known_are_found_in_it() -> None:
    model = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(2, 2)), "decoder": nn.Linear(2, 2)})
    registry = ModuleRegistry()
    for name in ("encoder", "decoder"):
        registry.note_called(registry.register(model[name]))
    assert "contained_roots" not in drained(registry).facts
    registry.register(nn.Sequential(model))
    registry.register(nn.Sequential(model["encoder"]))  # the first model that contains a part counts
    part = drained(registry)
    assert part.facts["contained_roots"] == [[0, 3, 4, "0.encoder"], [2, 3, 4, "0.decoder"]]
    assert part.facts["called_roots"] == [0, 2]
    assert registry.container_of(2) == 3


@pytest.mark.parametrize(("is_freed", "has_own"), [(True, True), (False, True), (True, False)])
def test_parts_of_a_freed_module_are_found_in_the_model_that_has_them_now(is_freed: bool, has_own: bool) -> None:
    """Not where both are alive and share them, and not in a container that is made of them for one call."""
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
    before = nn.ModuleDict({f"layer_{number}": layer for number, layer in enumerate(layers)})
    registry = ModuleRegistry()
    registry.register(before)
    if is_freed:
        del before
        gc.collect()
    registry.register(nn.ModuleDict({"body": nn.Sequential(*layers), **({"head": nn.Linear(2, 2)} if has_own else {})}))
    expected = [[1, 3, 4, "body.0"], [2, 3, 4, "body.1"]] if is_freed and has_own else None
    assert drained(registry).facts.get("contained_roots") == expected


def test_names_are_asked_for_where_modules_of_one_class_live_together() -> None:
    asked: list[int] = []
    names: dict[int, str] = {}

    def names_of(modules: Sequence[object]) -> list[tuple[object, str]]:
        asked.append(len(modules))
        return [(module, names[id(module)]) for module in modules if id(module) in names]

    registry, part = ModuleRegistry(names_of), Part()
    one, other, third, fourth = (nn.Linear(2, 2) for _ in range(4))
    registry.register(nn.ReLU())
    registry.register(one)
    assert asked == []
    names |= {id(one): "generator", id(other): "self.nets['critic']", id(third): "models[0]", id(fourth): "Trainer.ema"}
    for module in (other, third, fourth):
        registry.register(module)
    assert asked == [2, 3, 4]
    registry.drain(part)
    assert part.facts["root_names"] == [(1, "generator"), (2, "critic"), (3, "models[0]"), (4, "ema")]


def test_names_that_several_modules_have_are_told_apart_by_what_holds_them() -> None:
    """The first search can find a variable of a function that is called with the module."""
    names: dict[int, str] = {}
    registry, part = ModuleRegistry(lambda modules: [(module, names[id(module)]) for module in modules]), Part()
    one, other, third = (nn.Linear(2, 2) for _ in range(3))
    names |= {id(one): "yolo.model", id(other): "model"}
    registry.register(one)
    registry.register(other)
    names |= {id(other): "self.trainer.model", id(third): "self.averages['x'].ema"}
    registry.register(third)
    registry.drain(part)
    assert part.facts["root_names"] == [(0, "yolo.model"), (1, "trainer.model"), (2, "ema")]


def test_a_module_that_a_function_has_made_and_returned_is_named_when_it_is_called() -> None:
    names: dict[int, str] = {}
    asked: list[int] = []

    def names_of(modules: Sequence[object]) -> list[tuple[object, str]]:
        asked.append(len(modules))
        return [(module, names[id(module)]) for module in modules if id(module) in names]

    registry, part = ModuleRegistry(names_of), Part()
    one, made = nn.Linear(2, 2), nn.Linear(2, 2)
    names[id(one)] = "model"
    registry.register(one)
    number = registry.register(made)
    registry.note_called(number)  # the call in which it was registered
    assert asked == [2]
    names[id(made)] = "quantized"
    for _ in range(2):
        registry.note_called(number)
        registry.note_called(0)
    assert asked == [2, 2]
    registry.drain(part)
    assert part.facts["root_names"] == [(0, "model"), (1, "quantized")]


def test_the_layers_of_a_class_do_not_use_up_all_searches() -> None:
    asked: list[type] = []

    def names_of(modules: Sequence[object]) -> list[tuple[object, str]]:
        asked.append(type(modules[0]))
        return []

    registry = ModuleRegistry(names_of)
    layers = [nn.Linear(2, 2) for _ in range(2 * MOST_OF_CLASS)]
    for module in (*layers, nn.Bilinear(2, 2, 2), nn.Bilinear(2, 2, 2)):
        registry.register(module)
    assert asked == [nn.Linear] * MOST_OF_CLASS + [nn.Bilinear]


def test_layers_of_keras_have_the_names_of_its_summary() -> None:
    """Its models have them in lists, so each is an outermost module. A module inside has the weights."""
    layer: Any = type("Layer", (nn.Module,), {"__module__": "keras.src.layers.layer"})
    dense: Any = type("Mine", (layer,), {})
    registry = ModuleRegistry(lambda _: pytest.fail("it asked for names"))
    for name in ("mine", "mine_1", "not\na name"):
        module = dense()
        module.name, module._torch_params = name, nn.ParameterDict({"kernel": nn.Parameter(torch.ones(2))})
        registry.register(module)
    part = drained(registry)
    assert part.facts["root_names"] == [(0, "mine"), (2, "mine_1")]
    assert [entry["path"] for entry in part.modules] == [""] * 6


@pytest.mark.parametrize("part_first", [True, False])
def test_a_model_of_the_class_of_a_part_has_a_name(part_first: bool) -> None:
    """Such as an average of a part, whichever is registered first; not one whose class has parts of the same class."""
    asked: list[object] = []

    def names_of(modules: Sequence[object]) -> list[tuple[object, str]]:
        asked.extend(modules)
        return [(module, "average") for module in modules]

    registry, part = ModuleRegistry(names_of), Part()
    model, average = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU()), nn.Linear(2, 2)
    for module in (model, average) if part_first else (average, model):
        registry.register(module)
    registry.drain(part)
    assert asked == [average]
    assert part.facts["root_names"] == [(registry.module_ids[id(average)], "average")]


def test_a_part_that_was_called_before_its_model_tells_no_class_apart() -> None:
    registry = ModuleRegistry(lambda _: pytest.fail("it asked for names"))
    part = nn.Linear(2, 2)
    registry.register(part)
    registry.register(nn.Sequential(part))


def test_one_search_names_all_models_of_a_list() -> None:
    registry, part = ModuleRegistry(outer_names_of), Part()
    models = [nn.Linear(2, 2) for _ in range(3 * MOST_OF_CLASS)]
    for module in models:
        registry.register(module)
    registry.drain(part)
    assert part.facts["root_names"] == [(number, f"models[{number}]") for number in range(len(models))]


def test_a_model_at_the_address_of_a_freed_one_does_not_get_its_name() -> None:
    freed: list[int] = []

    def names_of(modules: Sequence[object]) -> list[tuple[object, str]]:
        others = [nn.Linear(2, 2) for _ in range(50)]
        freed.extend(map(id, others))
        return [*((module, "kept") for module in modules), *((other, "models[9]") for other in others)]

    registry, part = ModuleRegistry(names_of), Part()
    kept = [nn.Linear(2, 2), nn.Linear(2, 2)]
    for module in kept:
        registry.register(module)
    while id(module := nn.Linear(2, 2)) not in freed:
        kept.append(module)
        assert len(kept) < 10_000
    registry.register(module)
    registry.drain(part)
    assert "models[9]" not in dict(part.facts["root_names"]).values()


def test_a_model_that_is_built_again_needs_no_name() -> None:
    registry = ModuleRegistry(lambda _: pytest.fail("it asked for names"))
    for _ in range(3):
        registry.register(nn.Linear(2, 2))


def test_a_lazy_module_has_the_class_that_it_gets() -> None:
    registry = ModuleRegistry()
    model = nn.Sequential(nn.LazyLinear(2), nn.LazyConv2d(2, 1), nn.ReLU())
    registry.register(model)
    assert "module_classes" not in drained(registry).facts
    model[0](torch.ones(1, 3))
    part = drained(registry)
    assert (part.modules, part.facts["module_classes"]) == ([], [(1, "Linear")])
    assert {"LazyLinear", "Linear"} <= registry.classes.names
    del model
    gc.collect()
    assert drained(registry).facts["module_classes"] == [(1, "Linear")]


class Scaled(torch.jit.ScriptModule):
    """A module that is written in TorchScript."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    @torch.jit.script_method  # type: ignore[attr-defined]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Headed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scaled, self.head = Scaled(), nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.scaled(x))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("is_scripted", [False, True])
def test_parts_of_scripted_modules_have_the_names_and_classes_that_were_scripted(is_scripted: bool) -> None:
    model = Headed()
    registry = ModuleRegistry()
    registry.register(torch.jit.script(model) if is_scripted else model)
    part = drained(registry)
    assert part.names == ["scaled.scale", "head.weight", "head.bias"]
    classes = {entry["path"]: entry["class_name"] for entry in part.modules}
    assert classes == {"": "Headed", "scaled": "Scaled", "head": "Linear"}
    assert len({entry["root"] for entry in part.modules}) == 1
