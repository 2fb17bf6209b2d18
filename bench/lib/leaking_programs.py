"""Small trainings whose memory grows in every step, each in another way, for bench/memory/leaks.py."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import logging.handlers
import queue
import threading
import weakref
from collections import ChainMap, UserList, defaultdict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

STEPS = 100
WIDTH = 256
ROWS = 128
BLOCK = (1 << 18) - 64
"""Numbers in what most of the programs keep: almost 1 MiB."""

Program = Callable[[], object]
LEAKS: dict[Program, tuple[str, ...]] = {}
"""Each program, and the names of the program of which one must be told; none if nothing has a name."""


def leak(*names: str) -> Callable[[Program], Program]:
    """Add a program, and the names of what holds its memory."""

    def add(program: Program) -> Program:
        LEAKS[program] = names
        return program

    return add


class Training:
    """A training of two layers."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, rows: int = ROWS) -> tuple[Tensor, Tensor]:
        """Train one step; return the output and the loss."""
        self.optimizer.zero_grad()
        output = self.model(torch.randn(rows, WIDTH))
        loss = output.square().mean()
        loss.backward()
        self.optimizer.step()
        return output, loss


def block() -> Tensor:
    """Return almost 1 MiB, all of it written."""
    return torch.rand(BLOCK)


@dataclass(slots=True)
class Record:
    """What one step of a training was."""

    step: int
    output: Tensor


@dataclass
class History:
    """Records of steps."""

    records: list[Record] = field(default_factory=list)


class Node:
    """An element of a linked list."""

    def __init__(self, value: Tensor, before: Node | None) -> None:
        self.value, self.before = value, before


class Registry:
    """Results of all steps, for all instances."""

    results: ClassVar[dict[str, Tensor]] = {}


class Smoothed:
    """A moving average of a metric."""

    def __init__(self) -> None:
        self.average: Tensor | float = 0.0

    def update(self, value: Tensor) -> None:
        """Add a value."""
        self.average = 0.9 * self.average + 0.1 * value


class MeanMetric:
    """A metric that keeps its values until it is computed."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []

    def update(self, value: Tensor) -> None:
        """Add a value."""
        self.values.append(value)


class Writer:
    """A log of events, as TensorBoard's."""

    def __init__(self) -> None:
        self.events: dict[str, list[dict[str, Any]]] = {}

    def add_histogram(self, tag: str, values: Tensor, step: int) -> None:
        """Add an event."""
        self.events.setdefault(tag, []).append({"step": step, "values": values})


@leak("average")
def average_with_its_graph() -> None:
    """A moving average of the loss is never detached."""
    training, metric = Training(), Smoothed()
    for _ in range(STEPS):
        training.step()
        metric.update(training.model(torch.randn(ROWS, WIDTH)).square().mean())


@leak("optimizers")
def recreated_optimizers() -> None:
    """A list keeps an optimizer, with its state, of every step."""
    training, optimizers = Training(), []
    for _ in range(STEPS):
        training.optimizer = torch.optim.AdamW(training.model.parameters())
        optimizers.append(training.optimizer)
        training.step()


@leak("schedulers")
def schedulers_of_old_optimizers() -> None:
    """A dict keeps a scheduler of every step, and that keeps the optimizer."""
    training, schedulers = Training(), {}
    for number in range(STEPS):
        training.optimizer = torch.optim.Adam(training.model.parameters())
        schedulers[number] = torch.optim.lr_scheduler.StepLR(training.optimizer, 10)
        training.step()
        schedulers[number].step()


@leak()
def cycles_without_a_collector() -> None:
    """Each step makes an object that refers to itself, and the garbage collector is off."""
    gc.disable()
    training = Training()
    for _ in range(STEPS):
        training.step()
        node = Node(block(), None)
        node.before = node


@leak("finalize", "_registry")
def arguments_of_finalizers() -> None:
    """Each step registers a finalizer of the model with a tensor as its argument."""
    training = Training()
    for _ in range(STEPS):
        training.step()
        weakref.finalize(training.model, id, block()).atexit = False


@leak("records")
def fields_of_a_dataclass() -> None:
    """A dataclass keeps a record of every step."""
    training, history = Training(), History()
    for number in range(STEPS):
        training.step()
        history.records.append(Record(number, block()))


@leak("recent")
def deque_without_a_limit() -> None:
    """A deque of recent outputs has no ``maxlen``."""
    training, recent = Training(), deque[Tensor]()
    for _ in range(STEPS):
        recent.append(training.step()[0].detach())
        recent.append(block())


@leak("by_epoch")
def lists_of_epochs() -> None:
    """A dict has a list of outputs for each epoch."""
    training, by_epoch = Training(), defaultdict[int, list[Tensor]](list)
    for number in range(STEPS):
        training.step()
        by_epoch[number // 10].append(block())


@leak("results")
def dict_of_a_class() -> None:
    """A dict that is an attribute of a class has an entry for each step."""
    training = Training()
    for number in range(STEPS):
        training.step()
        Registry.results[f"step {number}"] = block()


@leak("callbacks")
def arguments_of_partials() -> None:
    """A list of callbacks keeps a tensor of every step."""
    training, callbacks = Training(), []
    for _ in range(STEPS):
        training.step()
        callbacks.append(functools.partial(print, block()))


@leak("buffer")
def records_of_a_log() -> None:
    """A handler of logging keeps records, with their arguments."""
    training, handler = Training(), logging.handlers.MemoryHandler(1 << 20)
    logger = logging.getLogger("training")
    logger.propagate = False
    logger.addHandler(handler)
    for number in range(STEPS):
        training.step()
        logger.warning("step %d: %s", number, block())


@leak("events")
def events_of_a_writer() -> None:
    """A writer keeps the tensors of its histograms."""
    training, writer = Training(), Writer()
    for number in range(STEPS):
        training.step()
        writer.add_histogram("weights", block(), number)


@leak("values")
def metric_that_is_never_reset() -> None:
    """A metric keeps the outputs of all steps, with their graphs."""
    training, metric = Training(), MeanMetric()
    for _ in range(STEPS):
        metric.update(training.step()[0])


@leak("seen", "results")
def list_of_a_thread() -> None:
    """A thread keeps all that it has received."""
    training, results = Training(), queue.Queue[Tensor | None](4)

    def receive() -> None:
        seen = []
        while (received := results.get()) is not None:
            seen.append(received)

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    for _ in range(STEPS):
        training.step()
        results.put(block())
    results.put(None)
    thread.join()


@leak("saved")
def gradients_of_a_hook() -> None:
    """A hook of the backward pass keeps gradients."""
    training = Training()

    def saving() -> Callable[..., None]:
        saved: list[Tensor] = []
        return lambda _module, _before, after: saved.append(after[0])

    training.model[0].register_full_backward_hook(saving())
    for _ in range(STEPS):
        training.step(2 * ROWS)


@leak("last")
def chain_of_exceptions() -> None:
    """Each exception is raised from the one before, and has its own frame."""
    training = Training()
    last: BaseException | None = None

    def fail(scratch: Tensor, cause: BaseException | None) -> None:
        raise ValueError(str(scratch.shape)) from cause

    for _ in range(STEPS):
        training.step()
        try:
            fail(block(), last)
        except ValueError as error:
            last = error


@leak("head")
def linked_list() -> None:
    """Each element of a linked list refers to the one before."""
    training = Training()
    head: Node | None = None
    for _ in range(STEPS):
        training.step()
        head = Node(block(), head)


@leak("state")
def state_that_is_never_detached() -> None:
    """The state of a recurrent cell keeps the graphs of all steps."""
    training, cell = Training(), nn.GRUCell(WIDTH, WIDTH)
    state = torch.zeros(ROWS, WIDTH)
    for _ in range(STEPS):
        state = cell(training.step()[0].detach(), state)


class Embedder:
    """Keeps what it has embedded."""

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033 - the planted leak
    def embed(self, _text: str) -> Tensor:
        """Return an embedding."""
        return block()


@leak("embed")
def cache_of_a_method() -> None:
    """A method has ``lru_cache`` without a limit, and every step another argument."""
    training, embedder = Training(), Embedder()
    for number in range(STEPS):
        training.step()
        embedder.embed(f"text {number}")


@leak("predictions")
def arrays_by_name() -> None:
    """A dict has an array of NumPy for each step."""
    training, predictions = Training(), {}
    for number in range(STEPS):
        predictions[f"step {number}"] = training.step(2 * ROWS)[0].detach().numpy()


@leak("stack", "_exit_callbacks")
def callbacks_of_an_exit_stack() -> None:
    """An exit stack that is never closed has a callback for each step."""
    training, stack = Training(), contextlib.ExitStack()
    for _ in range(STEPS):
        training.step()
        stack.callback(id, block())
    stack.pop_all()


@leak("adapters", "_modules")
def layers_that_are_added() -> None:
    """Every step adds a layer to the model."""
    training, adapters = Training(), nn.ModuleList()
    for _ in range(STEPS):
        adapters.append(nn.Linear(2 * WIDTH, 2 * WIDTH))
        training.step()


@leak("outputs", "data")
def list_class_of_the_program() -> None:
    """A ``UserList`` keeps outputs."""
    training, outputs = Training(), UserList[Tensor]()
    for _ in range(STEPS):
        training.step()
        outputs.append(block())


@leak("maps", "scope")
def nested_maps() -> None:
    """Every step adds a map to a chain of maps."""
    training, scope = Training(), ChainMap[str, Tensor]()
    for _ in range(STEPS):
        training.step()
        scope = scope.new_child({"output": block()})


@leak("tasks")
def tasks_of_asyncio() -> None:
    """A set keeps all tasks that have ended, with their results."""
    training = Training()

    async def infer() -> Tensor:
        return block()

    async def requests() -> AsyncIterator[int]:
        for number in range(STEPS):
            await asyncio.sleep(0)
            yield number

    async def serve() -> None:
        tasks = set()
        async for _ in requests():
            training.step()
            tasks.add(asyncio.create_task(infer()))

    asyncio.run(serve())
