"""The batch of a call, from the tensor among its arguments that shows it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.inputs.input_shapes import MODULES, InputShapes
from gpuledger.model.journal.journal import Part

pytestmark = pytest.mark.torch


def seen(*calls: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[dict[str, Any], list[list[int]]]:
    """Return the facts and the rows of calls, each of which is a step."""
    shapes, part = InputShapes(), Part()
    for step, (args, kwargs) in enumerate(calls, 1):
        shapes.see(0, step, args, kwargs)
    shapes.drain(part)
    return part.facts.get("inputs") or {}, part.facts.get("calls") or []


def generation(rows: int, length: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call by ``generate()`` of transformers 4.57 and 5.0: positions come before tokens."""
    tokens = torch.zeros(rows, length, dtype=torch.long)
    return (), {"cache_position": torch.arange(length), "past_key_values": object(), "input_ids": tokens}


def test_positions_before_the_tokens_are_not_the_batch() -> None:
    about, calls = seen(generation(4, 12), generation(4, 1), generation(4, 1))
    assert calls == [[1, 1, 4, 12], [2, 3, 4, 1]]
    known = {"module_id": 0, "shape": [4, 1], "tokens": True, "step_calls": 1}
    assert about == known | {"batch_dim": 0, "step_samples": None, "is_part": False}


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        ((torch.zeros(8, dtype=torch.long), torch.zeros(2, 8, 16)), [1, 1, 8, -1]),  # a token each, and a hidden state
        ((torch.zeros(5, dtype=torch.long), torch.ones(5, dtype=torch.long)), [1, 1, 5, -1]),  # users and items
        ((torch.rand(3, 4), torch.zeros(3, 7, dtype=torch.long)), [1, 1, 3, -1]),
        (([torch.zeros(3, 4)],), [1, 1, 3, -1]),
        (([torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 4, 4)],), [1, 1, 2, -1]),
    ],
    ids=["recurrent", "pairs", "features", "nested", "scales"],
)
def test_otherwise_the_first_tensor_shows_it(arguments: tuple[Any, ...], call: list[int]) -> None:
    assert seen((arguments, {}))[1] == [call]


def test_images_in_a_list_are_one_sample_each() -> None:
    """Detectors of torchvision take a list of images, whose first dimension is that of channels, and of targets."""
    images = [torch.zeros(3, 8, 8), torch.zeros(3, 8, 6)]
    about, calls = seen(((images, [{"boxes": torch.zeros(5, 4)}]), {}), ((tuple(images),), {}))
    assert calls == [[1, 2, 2, -1]]
    assert about["shape"] == [2, 3, 8, 8]


@pytest.mark.parametrize("sizes", [[(30, 3), (50, 3)], [(3, 8, 8), (4, 8, 8)]], ids=["points", "channels"])
def test_tensors_of_different_lengths_in_a_list_show_no_batch(sizes: list[tuple[int, ...]]) -> None:
    assert seen((([torch.zeros(size) for size in sizes],), {})) == ({}, [])


@pytest.mark.parametrize(
    ("first", "rows"), [(SimpleNamespace(x=torch.zeros(100, 4)), 0), (torch.float32, 3), (None, 3), ("train", 3)]
)
def test_a_tensor_after_an_object_that_can_have_the_data_shows_no_batch(first: object, rows: int) -> None:
    """A model of a graph gets the graph, and the numbers of a few of its nodes."""
    numbers = torch.zeros(3, dtype=torch.long)
    _, calls = seen(((first, numbers), {}), ((torch.zeros(5, 2),), {}))
    assert calls[0] == [1, 1, rows, -1]


@pytest.mark.parametrize("nested", [False, True])
def test_words_of_several_texts_and_where_each_begins_show_no_batch(nested: bool) -> None:
    words, offsets = torch.zeros(5, dtype=torch.long), torch.tensor([0, 3])
    assert seen(((([words, offsets],) if nested else (words, offsets)), {})) == ({}, [])


def test_one_dimension_of_fractions_is_no_batch() -> None:
    assert seen(((torch.rand(5),), {})) == ({}, [])


def test_the_batch_of_a_call_inside_vmap_is_unknown() -> None:
    """vmap hides a dimension, and the first that is left is a guess, also of a call of other transforms around it."""
    shapes, part = InputShapes(), Part()

    def see(step: int, x: torch.Tensor) -> torch.Tensor:
        shapes.see(0, step, (x,), {})
        return x.square().sum()

    torch.vmap(lambda x: see(1, x[None]))(torch.rand(32, 8))
    torch.func.vmap(torch.func.grad(lambda x: see(2, x[None])))(torch.rand(32, 8))
    torch.func.grad(lambda x: see(3, x))(torch.rand(16, 8))  # hides none
    shapes.drain(part)
    assert part.facts["calls"] == [[1, 2, 0, -1], [3, 3, 16, -1]]
    assert part.facts["inputs"]["shape"] == [16, 8]


def test_a_model_that_only_vmap_calls_has_no_batch() -> None:
    shapes, part = InputShapes(), Part()
    torch.vmap(lambda x: [shapes.see(0, 1, (x[None],), {}), x.sum()][1])(torch.rand(32, 8))
    shapes.drain(part)
    assert part.facts == {"inputs": None, "calls": [], "has_batch": True}


def test_the_output_shows_a_batch_in_the_second_dimension() -> None:
    shapes, part = InputShapes(), Part()
    for step, length in ((1, 30), (2, 20), (3, 30)):
        shapes.see(0, step, (torch.rand(length, 8, 5),), {})
        shapes.returned(0, (torch.rand(8, 10),))
    shapes.drain(part)
    assert part.facts["calls"] == [[1, 3, 8, -1]]
    assert part.facts["inputs"]["batch_dim"] == 1


@pytest.mark.parametrize("persistent", [True, False])
def test_a_data_loader_shows_the_batch(persistent: bool) -> None:
    """A loop over a DataLoader without a name keeps its iterator only."""
    shapes, part = InputShapes(lambda _: True), Part()
    loader = DataLoader(TensorDataset(torch.zeros(40, 12)), batch_size=8)
    kept: Any = loader if persistent else iter(loader)
    del loader
    shapes.see_loaders(one for one in LiveObjects().loaders() if one is kept)
    for step in (1, 2):
        shapes.see(0, step, (torch.zeros(12, 8, dtype=torch.long),), {})
        shapes.returned(0, torch.rand(12, 8, 50))
    shapes.drain(part)
    assert part.facts["inputs"]["batch_dim"] == 1
    assert part.facts["calls"] == [[1, 2, 8, -1]]


def accumulated(batches: Iterable[torch.Tensor], *, every: int = 1, others: Iterable[int] = ()) -> int | None:
    """Return the samples of a step of several calls, with a backward pass after every so many calls.

    Args:
        batches: The batches of the step.
        every: Number of calls before a backward pass.
        others: Ids of other modules that are called in the step; negative ones have no weights.
    """
    shapes, part = InputShapes(holds_tensors=lambda module_id: module_id >= 0), Part()
    for step in (1, 2):
        for number, batch in enumerate(batches, 1):
            shapes.see(0, step, (batch,), {})
            for other in others:
                shapes.see(other, step, (batch[:, :1],), {})
            if number % every == 0:
                shapes.backward_ended()
    shapes.drain(part)
    found = part.facts["inputs"]["step_samples"]
    assert found is None or type(found) is int
    return found


def test_batches_of_gradient_accumulation_are_added() -> None:
    batches = [torch.rand(8, 4), torch.rand(8, 4), torch.rand(6, 4)]
    assert accumulated(batches) == 22
    assert accumulated(batches, others=[-5]) == 22  # a loss
    assert accumulated(batches[:1]) is None  # not accumulated


def test_calls_that_are_no_accumulation_are_not_added() -> None:
    batches = [torch.rand(8, 4) for _ in range(4)]
    assert accumulated(batches, every=2) is None
    assert accumulated(batches[:1] * 2) is None  # the same batch again, as with a sharpness-aware optimizer
    assert accumulated([batches[0].requires_grad_(), batches[1]]) is None  # an adversarial attack
    assert accumulated(batches, others=[3]) is None  # two networks


@pytest.mark.parametrize(("are_parts", "called"), [(True, MODULES + 1), (False, 0)])
def test_layers_that_a_model_calls_when_it_is_made_give_way_to_it(are_parts: bool, called: int) -> None:
    shapes, part = InputShapes(is_part=lambda number: are_parts and number <= MODULES), Part()
    for number in range(MODULES + 2):
        for _ in range(1 + 2 * (number > MODULES)):
            shapes.see(number, 1, (torch.rand(1 + number, 4),), {})
    shapes.drain(part)
    assert part.facts["inputs"]["module_id"] == called
    assert part.facts["calls"] == [[1, 1, 1 + called, -1]]


def test_another_thread_can_call_modules_while_the_shapes_are_written() -> None:
    shapes, batch = InputShapes(), torch.rand(8, 4)
    switched_s = sys.getswitchinterval()

    def call() -> None:
        for step in range(1, 4_001):
            shapes.see(step % 2, step, (batch,), {})

    caller = threading.Thread(target=call)
    sys.setswitchinterval(1e-6)
    try:
        caller.start()
        while caller.is_alive():
            shapes.drain(Part())
    finally:
        caller.join()
        sys.setswitchinterval(switched_s)


def test_calls_without_gradients_are_not_the_batch_of_a_training() -> None:
    """Another thread evaluates a copy of the model more often, and a policy acts on one observation at a time."""
    shapes, part = InputShapes(), Part()
    for step in range(1, 4):
        for module_id, rows in ((1, 16), (1, 16), (0, 1), (0, 1)):
            with torch.no_grad():
                shapes.see(module_id, step, (torch.zeros(rows, 8),), {})
        shapes.see(0, step, (torch.zeros(64, 8),), {})
        shapes.backward_ended()
    shapes.drain(part)
    assert part.facts["calls"] == [[1, 3, 64, -1]]
    assert (part.facts["inputs"]["module_id"], part.facts["inputs"]["step_calls"]) == (0, 1)


def test_without_a_training_the_calls_of_most_steps_show_the_batch() -> None:
    shapes, part = InputShapes(), Part()
    shapes.see(0, 1, (torch.zeros(2, 8),), {})
    for step in range(2, 5):
        with torch.inference_mode():
            shapes.see(0, step, (torch.zeros(32, 8),), {})
    shapes.drain(part)
    assert part.facts["calls"] == [[2, 4, 32, -1]]


def test_an_evaluation_inside_a_step_leaves_its_accumulated_batches_known() -> None:
    shapes, part = InputShapes(), Part()
    batches = [torch.zeros(8, 4), torch.zeros(8, 4)]
    for step in range(1, 3):
        for batch in batches:
            shapes.see(0, step, (batch,), {})
            shapes.backward_ended()
            with torch.no_grad():
                shapes.see(0, step, (torch.zeros(32, 4),), {})
    shapes.drain(part)
    assert part.facts["inputs"]["step_samples"] == 16
