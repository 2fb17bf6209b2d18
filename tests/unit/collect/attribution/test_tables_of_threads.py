"""Modules, names, tags and observations that several threads of a program add at the same time."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from torch import nn

from gpuledger.collect.adapter.program_objects import items_of
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.tags import TagTable, suffix
from gpuledger.collect.attribution.tensor_observations import TensorObservations
from gpuledger.model.accounts import Identity, Phase
from gpuledger.model.journal.journal import Part

pytestmark = pytest.mark.torch

THREADS, MODELS = 6, 40


@pytest.fixture(autouse=True)
def short_turns() -> Iterator[None]:
    """Let threads lose the GIL after a microsecond."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


def in_threads(do: Callable[[int], None]) -> None:
    """Call a function with a thread's number in each of some threads that begin together."""
    together, errors = threading.Barrier(THREADS), list[BaseException]()

    def run(number: int) -> None:
        together.wait()
        try:
            do(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_module_can_be_written_as_soon_as_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread writes the journal when a module has an id, while it is being registered."""
    registry, part = ModuleRegistry(), Part()
    point = ModuleRegistry._point

    def point_and_drain(self: ModuleRegistry, module: nn.Module, number: int) -> int:
        point(self, module, number)
        self.drain(part)
        return number

    monkeypatch.setattr(ModuleRegistry, "_point", point_and_drain)
    registry.register(nn.Sequential(nn.Linear(1, 1), nn.ReLU()))
    registry.drain(part)
    assert [one["class_name"] for one in part.modules] == ["Sequential", "Linear", "ReLU"]


def test_each_module_keeps_its_own_id_path_and_names() -> None:
    registry, part = ModuleRegistry(), Part()
    models = [
        [nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU(), nn.LayerNorm(1))) for _ in range(MODELS)]
        for _ in range(THREADS)
    ]

    def register(number: int) -> None:
        for model in models[number]:
            registry.note_called(registry.register(model))
            if not number:
                registry.drain(part)

    in_threads(register)
    registry.drain(part)
    assert len(part.modules) == THREADS * MODELS * 5
    for model in (model for some in models for model in some):
        root_id = registry.module_ids[id(model)]
        for path, module in model.named_modules():
            entry = part.modules[registry.module_ids[id(module)]]
            assert (entry["path"], entry["class_name"], entry["root"]) == (path, type(module).__name__, root_id)
    held = {id(reference()): part.names[name_id] for reference, name_id, _ in registry.parameters}
    assert all(held[id(weight)] == name for some in models for m in some for name, weight in m.named_parameters())


def test_threads_that_register_one_model_get_one_id() -> None:
    for _ in range(30):
        registry, model, found = ModuleRegistry(), nn.Sequential(*(nn.Linear(1, 1) for _ in range(10))), set[int]()
        in_threads(lambda _, registry=registry, model=model, found=found: found.add(registry.register(model)))  # type: ignore[misc]
        assert found == {0}
        assert registry.paths() == [str(number) for number in range(10)]


def test_a_name_has_one_id_in_all_threads() -> None:
    registry, part = ModuleRegistry(), Part()
    found: list[dict[str, int]] = [{} for _ in range(THREADS)]

    def name(number: int) -> None:
        for at in range(300):
            found[number][f"name {at}"] = registry.name_id(f"name {at}")

    in_threads(name)
    registry.drain(part)
    assert len(part.names) == 300
    assert all(part.names[number] == text for numbers in found for text, number in numbers.items())


def test_no_tag_is_lost_or_shared() -> None:
    tags, part = TagTable(), Part()
    found: list[dict[int, int]] = [{} for _ in range(THREADS)]
    prefix = tags.begin_visit(1, Phase.FORWARD)

    def number_tokens(number: int) -> None:
        for at in range(300):
            module_id = number * 300 + at
            found[number][tags.number(prefix + suffix(module_id))] = module_id
            if not number and not at % 10:
                tags.drain(part)

    in_threads(number_tokens)
    tags.drain(part)
    table = part.arrays()
    written = dict(zip(table["tags.tag_id"].tolist(), table["tags.module_id"].tolist(), strict=True))
    assert written == {tag_id: module_id for ids in found for tag_id, module_id in ids.items()}
    assert len(written) == THREADS * 300


def test_no_observation_is_lost() -> None:
    seen, part = TensorObservations(ModuleRegistry(), lambda _: {0: (0, 0)}), Part()

    def observe(number: int) -> None:
        for at in range(500):
            seen.add_row(seen.row_of(Identity.LEAF, -1, -1, (0, number * 500 + at)))
            if not number and not at % 10:
                seen.drain(part)

    in_threads(observe)
    seen.drain(part)
    assert sorted(part.arrays()["identities.address"].tolist()) == list(range(THREADS * 500))


class Grows:
    """An object in a reference cycle, whose finalizer adds to a table."""

    def __init__(self, table: dict[object, object]) -> None:
        self.itself, self.table = self, table

    def __del__(self) -> None:
        self.table[object()] = None


@pytest.fixture
def often_collected() -> Iterator[None]:
    """Collect garbage after every few objects that are made."""
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(30)
    yield
    gc.set_threshold(*before)


def test_a_table_is_read_while_finalizers_add_to_it(often_collected: None) -> None:
    table: dict[object, object] = dict.fromkeys(range(200))
    for _ in range(20):
        Grows(table)
        assert [key for key, _ in items_of(table)][:200] == [*range(200)]
    assert len(table) > 200


def test_modules_are_drained_while_finalizers_add_others(often_collected: None) -> None:
    registry, part = ModuleRegistry(), Part()
    models = [nn.Linear(1, 1) for _ in range(400)]
    waiting = models[200:]
    for model in models[:200]:
        registry.register(model)

    class Registers:
        """Registers a module when garbage is collected, and leaves another one of its kind."""

        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            if waiting:
                registry.register(waiting.pop())
                Registers()

    Registers()
    for _ in range(len(models)):
        registry.drain(part)
        gc.collect()
    assert not waiting
    registry.drain(part)
    assert len(part.modules) == len(models)
