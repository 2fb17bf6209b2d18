"""Small trainings whose memory changes, but does not grow for ever, for bench/memory/leaks.py."""

from __future__ import annotations

import copy
import functools
import io
import math
import queue
import random
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import torch
from leaking_programs import BLOCK, ROWS, STEPS, WIDTH, Node, Training, block
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

HEALTHY: list[Callable[[], object]] = []


def healthy(program: Callable[[], object]) -> Callable[[], object]:
    """Add a program."""
    HEALTHY.append(program)
    return program


@healthy
def warm_up() -> None:
    """The first steps make buffers that stay."""
    training = Training()
    buffers = []
    for number in range(STEPS):
        training.step()
        if number < 30:
            buffers.append(block())


@healthy
def curriculum_with_an_end() -> None:
    """Sequences become longer for the first half of the training."""
    training = Training()
    for number in range(STEPS):
        training.step(ROWS + 16 * min(number, STEPS // 2))


@healthy
def curriculum_without_an_end() -> None:
    """Sequences become longer until the last step, and the losses are kept."""
    training, losses = Training(), []
    for number in range(STEPS):
        loss = training.step(ROWS + 32 * number)[1]
        losses.append(loss.detach())


@healthy
def batches_that_double() -> None:
    """The batch doubles every 30 steps."""
    training = Training()
    for number in range(STEPS):
        training.step(128 << (number // 30))


@healthy
def cache_by_bytes() -> None:
    """A cache evicts its oldest entries beyond 16 MiB."""
    training, cache, size = Training(), OrderedDict[int, Tensor](), 0
    for number in range(STEPS):
        training.step()
        cache[number] = torch.rand(BLOCK // 4 * (1 + number % 4))
        size += cache[number].nbytes
        while size > 16 << 20:
            size -= cache.popitem(last=False)[1].nbytes


class Tokens:
    """Keeps the last results."""

    @functools.lru_cache(maxsize=16)  # noqa: B019 - what a program does
    def encode(self, _text: str) -> Tensor:
        """Return tokens."""
        return block()


@healthy
def bounded_cache_of_a_method() -> None:
    """A method keeps its last 16 results."""
    training, tokens = Training(), Tokens()
    for number in range(STEPS):
        training.step()
        tokens.encode(f"text {number}")


@healthy
def ragged_batches() -> None:
    """Batches have random lengths."""
    training, lengths = Training(), random.Random(3)
    for _ in range(STEPS):
        training.step(int(min(lengths.lognormvariate(6, 0.7), 4000)) + 1)


@healthy
def ragged_batches_and_their_losses() -> None:
    """Batches have random lengths, and each loss is kept as a tensor."""
    training, lengths, losses = Training(), random.Random(5), []
    for _ in range(STEPS):
        loss = training.step(lengths.randrange(64, 2048))[1]
        losses.append(loss.detach())


@healthy
def moving_average() -> None:
    """A copy of the model follows the weights."""
    training = Training()
    average = copy.deepcopy(training.model)
    for _ in range(STEPS):
        training.step()
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), training.model.parameters(), strict=True):
                mean.mul_(0.99).add_(weight, alpha=0.01)


@healthy
def replay_buffer() -> None:
    """A buffer of 24 entries is filled, and then entries are replaced at random."""
    training, places = Training(), random.Random(2)
    buffer: list[Tensor] = []
    for _ in range(STEPS):
        training.step()
        if len(buffer) < 24:
            buffer.append(block())
        else:
            buffer[places.randrange(24)] = block()


@healthy
def queue_of_keys() -> None:
    """The last 4,096 keys are kept, as MoCo does."""
    training, keys = Training(), torch.empty(0, WIDTH)
    for _ in range(STEPS):
        keys = torch.cat([keys, training.step()[0].detach()])[-4096:].clone()


@healthy
def accumulated_gradients() -> None:
    """Four backward passes lead to one update."""
    training = Training()
    for _ in range(STEPS):
        for _ in range(3):
            training.model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        training.step()


@healthy
def validation() -> None:
    """Every 15 steps, the outputs of a validation are collected, joined and dropped."""
    training = Training()
    for number in range(STEPS):
        training.step()
        if number % 15 == 14:
            with torch.no_grad():
                outputs = [training.model(torch.randn(ROWS, WIDTH)) for _ in range(12)]
            torch.cat(outputs).mean()
            del outputs


@healthy
def outputs_of_an_epoch() -> None:
    """Outputs are kept for an epoch of 20 steps."""
    training, outputs = Training(), []
    for number in range(STEPS):
        outputs.append(training.step()[0].detach())
        if number % 20 == 19:
            outputs.clear()


@healthy
def prefetcher() -> None:
    """A thread prepares batches of various sizes in a queue of 8."""
    training, batches = Training(), queue.Queue[Tensor | None](8)

    def prepare() -> None:
        for number in range(STEPS):
            batches.put(torch.rand(ROWS + 8 * (number % 50), WIDTH))
        batches.put(None)

    threading.Thread(target=prepare, daemon=True).start()
    while (batch := batches.get()) is not None:
        training.step(len(batch))


@healthy
def checkpoints() -> None:
    """The last three checkpoints are kept in memory."""
    training, kept = Training(), deque[bytes](maxlen=3)
    for number in range(STEPS):
        training.step()
        if number % 10 == 9:
            stream = io.BytesIO()
            torch.save({"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}, stream)
            kept.append(stream.getvalue())


@healthy
def optimizer_of_an_epoch() -> None:
    """A new optimizer replaces the old one every 20 steps."""
    training = Training()
    for number in range(STEPS):
        if number % 20 == 0:
            training.optimizer = torch.optim.Adam(training.model.parameters(), amsgrad=number > 40)
        training.step()


@healthy
def two_networks() -> None:
    """Two models are trained in turn."""
    first, second = Training(), Training()
    for _ in range(STEPS):
        fake = first.model(torch.randn(ROWS, WIDTH))
        second.optimizer.zero_grad()
        second.model(fake.detach()).square().mean().backward()
        second.optimizer.step()
        first.optimizer.zero_grad()
        second.model(fake).mean().backward()
        first.optimizer.step()


@healthy
def layers_unfrozen_in_stages() -> None:
    """Of eight layers, another one is trained from every 12th step on."""
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(8)]
    model = nn.Sequential(*layers)
    model.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(STEPS):
        layers[-1 - min(number // 12, 7)].requires_grad_(True)
        optimizer.zero_grad()
        model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        optimizer.step()


@healthy
def detached_state() -> None:
    """The state of a recurrent cell is detached after every step."""
    cell = nn.GRUCell(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(cell.parameters(), 0.01)
    state = torch.zeros(ROWS, WIDTH)
    for _ in range(STEPS):
        optimizer.zero_grad()
        state = cell(torch.randn(ROWS, WIDTH), state.detach())
        state.square().mean().backward()
        optimizer.step()


@healthy
def best_weights() -> None:
    """The best weights so far replace the best ones before."""
    training, best, lowest = Training(), None, math.inf
    for _ in range(STEPS):
        loss = training.step()[1].item()
        if loss < lowest:
            lowest, best = loss, copy.deepcopy(training.model.state_dict())
    print(best is not None)


@healthy
def data_set_in_memory() -> None:
    """Each of 40 items is read once, in the first epoch, and kept."""
    training, items = Training(), dict[int, Tensor]()
    for number in range(STEPS):
        training.step()
        items.setdefault(number % 40, block())


@healthy
def recomputed_activations() -> None:
    """Activations are checkpointed."""
    training = Training()
    for number in range(STEPS):
        training.optimizer.zero_grad()
        inputs = torch.randn(ROWS + (number * 37) % 512, WIDTH, requires_grad=True)
        output: Any = checkpoint(training.model, inputs, use_reentrant=False)
        output.square().mean().backward()
        training.optimizer.step()


@healthy
def last_snapshots() -> None:
    """The last five copies of the weights are averaged at the end."""
    training, snapshots = Training(), []
    for _ in range(STEPS):
        training.step()
        snapshots.append(copy.deepcopy(training.model.state_dict()))
        del snapshots[:-5]


@healthy
def cycles() -> None:
    """Each step makes an object that refers to itself; the garbage collector frees it."""
    training = Training()
    for _ in range(STEPS):
        node = Node(training.step()[0].detach(), None)
        node.before = node


@healthy
def linked_list_with_an_end() -> None:
    """The last ten outputs are a linked list."""
    training = Training()
    head: Node | None = None
    for _ in range(STEPS):
        training.step()
        head = last = Node(block(), head)
        for _ in range(9):
            last = last.before or last
        last.before = None
