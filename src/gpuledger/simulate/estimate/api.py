"""Memory estimates from Python and notebooks: a function that runs one training step is followed in this process."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.errors import InputError, UsageError
from gpuledger.files.scratch import scratch_directory
from gpuledger.model.run_writer import RunWriter, new_manifest
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.estimate.failures import WHAT_TO_TELL
from gpuledger.simulate.estimate.follow import describe_convolutions
from gpuledger.simulate.estimate.run import (
    DEFAULT_CONFIDENCE,
    DEFAULT_STEPS,
    Estimate,
    Order,
    finish,
    make_order,
)
from gpuledger.simulate.estimate.search import Search, Trial, find_largest
from gpuledger.simulate.estimate.session import SimulatedSession
from gpuledger.simulate.estimate.step_plan import StepPlan
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.dispatch import NotModelledError, SimulatedMode


def estimate(
    step: Callable[..., object],
    *inputs: object,
    gpu: str = "h200",
    steps: int = DEFAULT_STEPS,
    confidence: float = DEFAULT_CONFIDENCE,
    alloc_conf: str = "",
    out: str | Path | None = None,
) -> Estimate:
    """Return how many bytes a training step would need on a given GPU, and whether they fit.

    Modules and optimizers that ``step`` refers to (in its closure, its globals, or the object it is bound to) and
    ``inputs`` are placed on the simulated GPU during the call. They are unchanged afterwards.

    Args:
        step: Runs one training step when called with ``inputs``.
        inputs: Tensors, or containers of tensors.
        gpu: A GPU listed by ``gpuledger gpus``.
        steps: Number of calls of ``step``.
        confidence: Confidence level of ``upper_bytes``, from 0.5 to 0.999.
        alloc_conf: Settings as in ``PYTORCH_CUDA_ALLOC_CONF``.
        out: Directory of the run; by default a temporary one, which is removed when nothing refers to the result's
            ``run`` or its ranks any more, or this process ends. If there is no estimate, it is removed.

    Raises:
        UsageError: no such GPU, ``steps`` is not at least 1, ``confidence`` is outside its range, or ``out`` exists or
            cannot be created.
        InputError: the step uses something that cannot be simulated.

    Source: PyTorch's caching allocator, simulated; context and libraries as measured on that GPU.

    Example:
        >>> import gpuledger
        >>> gpuledger.estimate(train_step, batch, gpu="a100-80gb").fits  # doctest: +SKIP
    """
    order = make_order("estimate", (getattr(step, "__name__", "step"),), gpu, steps, confidence, alloc_conf)
    if out is not None:
        return _estimate_in(Path(out), order, step, inputs)
    with scratch_directory() as (directory, keep_with):
        found = _estimate_in(directory / "estimate.ledger", order, step, inputs)
        keep_with(found.run, *found.run.ranks)
    return found


def _estimate_in(directory: Path, order: Order, step: Callable[..., Any], inputs: Any) -> Estimate:
    """Return the estimate of a step, with its run in a new directory.

    Raises:
        UsageError: the directory exists or cannot be created.
        InputError: the step uses something that cannot be simulated.
    """
    try:
        writer = RunWriter.open(directory, new_manifest(directory.name, order.program, {}))
    except OSError as error:
        raise UsageError(
            f"{directory}: cannot be created: {error.strerror}", hint="Choose another directory with out="
        ) from error
    with writer.placing():
        return finish(order, writer, _follow(order, step, inputs, directory))


def _follow(order: Order, step: Callable[..., Any], inputs: Any, run_directory: Path) -> tuple[str, ...]:
    """Return notes, after following a step on the simulated GPU into a run's directory.

    Raises:
        InputError: the step uses something that cannot be simulated.
    """
    device = SimulatedDevice(order.card, CachingAllocator(order.settings))
    steps = order.steps or DEFAULT_STEPS
    session = SimulatedSession(device, StepPlan(steps, device), run_directory, ends_program=False)
    said: dict[str, None] = {}
    with in_place(device, lambda sentence: said.setdefault(sentence)) as mode:
        session.start()
        try:
            with _on_card(mode, step, inputs) as moved:
                for _ in range(steps):
                    step(*moved)
                    session.mark_step()
        except NotModelledError as error:
            raise InputError(f"{error}", hint=WHAT_TO_TELL) from error
        finally:
            session.finish("end of estimate")
    return (*said, *describe_convolutions(device))


def find_batch(
    step: Callable[[int], object],
    *,
    gpu: str = "h200",
    start: int = 1,
    steps: int = DEFAULT_STEPS,
    confidence: float = DEFAULT_CONFIDENCE,
    alloc_conf: str = "",
) -> Search:
    """Return the largest batch size that fits (None in ``largest`` if not even 1 does), and the sizes tried.

    Args:
        step: Runs one training step with the given batch size.
        gpu: A GPU listed by ``gpuledger gpus``.
        start: First batch size to try.
        steps: Number of calls of ``step`` per size.
        confidence: Confidence level of the upper bound, from 0.5 to 0.999.
        alloc_conf: Settings as in ``PYTORCH_CUDA_ALLOC_CONF``.

    Raises:
        UsageError: no such GPU, or ``start`` or ``steps`` is not at least 1.
        InputError: the step uses something that cannot be simulated.

    Source: an :func:`estimate` for each size.

    Example:
        >>> import gpuledger
        >>> gpuledger.find_batch(lambda batch: train_step(draw(batch)), gpu="h200").largest  # doctest: +SKIP
    """
    if start < 1:
        raise UsageError(f"find_batch(start={start}): start must be 1 or more")

    def try_value(value: int) -> Trial:
        found = estimate(step, value, gpu=gpu, steps=steps, confidence=confidence, alloc_conf=alloc_conf)
        return Trial.of(value, found)

    return find_largest(try_value, start, usable_bytes=find_card(gpu).usable_bytes)


@contextmanager
def _on_card(mode: SimulatedMode, step: Callable[..., Any], inputs: Any) -> Iterator[Any]:
    """Place the tensors of a step on the GPU, and restore everything at the end."""
    things = list(_reachable(step, inputs))
    moved: dict[int, torch.Tensor] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        known = moved.get(id(tensor))
        if known is None:
            with torch.no_grad(), mode.where.asking(True):
                copied = torch.ops.aten._to_copy.default(tensor.detach())
            known = nn.Parameter(copied, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copied
            moved[id(tensor)] = known
        return known

    undo: list[Callable[[], None]] = []
    for thing in things:
        if isinstance(thing, nn.Module):
            for module in thing.modules():
                undo.append(_exchange(module._parameters, move))
                undo.append(_exchange(module._buffers, move))
    undo += [_exchange_groups(thing, move) for thing in things if isinstance(thing, Optimizer)]
    try:
        yield tree_map(lambda value: move(value) if isinstance(value, torch.Tensor) else value, inputs)
    finally:
        for action in reversed(undo):
            action()


def _exchange(tensors: dict[str, Any], move: Callable[[Any], Any]) -> Callable[[], None]:
    before = dict(tensors)
    tensors.update({name: move(tensor) for name, tensor in before.items() if tensor is not None})
    return lambda: tensors.update(before)


def _exchange_groups(optimizer: Optimizer, move: Callable[[Any], Any]) -> Callable[[], None]:
    groups = [list(group["params"]) for group in optimizer.param_groups]
    state = dict(optimizer.state)
    for group in optimizer.param_groups:
        group["params"] = [move(parameter) for parameter in group["params"]]
    optimizer.state.clear()
    for parameter, values in state.items():
        kept = {name: move(value) if _is_large(value) else value for name, value in values.items()}
        optimizer.state[move(parameter)] = kept

    def undo() -> None:
        for group, parameters in zip(optimizer.param_groups, groups, strict=True):
            group["params"] = parameters
        optimizer.state.clear()
        optimizer.state.update(state)

    return undo


def _is_large(value: Any) -> bool:
    """Return whether an optimizer's state value is placed with its parameter; a step counter is not."""
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _reachable(step: Any, inputs: Any) -> Iterator[Any]:
    """Yield the modules and optimizers that a function refers to, once each."""
    waiting: list[Any] = [step, *inputs]
    seen: set[int] = set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, (nn.Module, Optimizer)):
            yield thing
        waiting += _referred_to(thing)


def _referred_to(thing: Any) -> list[Any]:
    if isinstance(thing, types.MethodType):
        return [thing.__func__, thing.__self__, *vars(thing.__self__).values()]
    if isinstance(thing, types.FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)]
        named = [thing.__globals__[name] for name in thing.__code__.co_names if name in thing.__globals__]
        own = [
            value for value in named if isinstance(value, (nn.Module, Optimizer, types.FunctionType, list, tuple, dict))
        ]
        return [*cells, *(thing.__defaults__ or ()), *own]
    if isinstance(thing, dict):
        return list(thing.values())
    return list(thing) if isinstance(thing, (list, tuple)) else []


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asking is the test
    except ValueError:
        return False
    return True
