"""Advice on a program that needs too much memory: the cheapest changes with which it fits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from gpuledger.analyze.allocator.alloc_conf import parse_alloc_conf
from gpuledger.errors import UsageError
from gpuledger.processes.child_job import run_program_job
from gpuledger.simulate.advice.choose import Tried
from gpuledger.simulate.advice.combination import Applied, Combination, describe
from gpuledger.simulate.catalogue import REFERENCE, GpuModel, find_card
from gpuledger.simulate.estimate.batch import find_argument
from gpuledger.simulate.estimate.run import DEFAULT_CONFIDENCE, DEFAULT_STEPS, Order, check_program
from gpuledger.units import format_bytes, parse_memory

_BATCH = re.compile(r"--?[\w-]*batch[\w-]*|--?bs|-b")
_OTHER_BATCH = re.compile(r"eval|val|test|accum|num|every|steps|epoch")


@dataclass(frozen=True)
class Advice:
    """Changes with which a program fits."""

    card: GpuModel
    """The GPU."""
    limit_bytes: int
    """Bytes that the process may use."""
    unchanged: Tried
    """The program as it is."""
    best: Tried | None
    """The cheapest combination that fits; None if there is none."""
    tried: tuple[Tried, ...]
    """All combinations, in ascending order of their time by FLOPs."""
    unavailable: tuple[str, ...]
    """Why some changes were not tried."""
    notes: tuple[str, ...]
    """Approximations."""

    @property
    def changes(self) -> tuple[str, ...]:
        """Return what to change, one sentence for each change; nothing if the program fits or nothing helps."""
        return () if self.best is None else tuple(describe(self.best.combination, self.best.applied))

    def __repr__(self) -> str:
        limit = format_bytes(self.limit_bytes)
        if self.best is None:
            return f"<Advice: no combination fits {limit}>"
        return f"<Advice: {' '.join(self.changes) or 'fits without changes.'} {format_bytes(self.best.upper_bytes)}>"


def advise(
    script: str,
    *arguments: str,
    memory: str,
    gpu: str = REFERENCE,
    batch_argument: str = "",
    steps: int = DEFAULT_STEPS,
    confidence: float = DEFAULT_CONFIDENCE,
    alloc_conf: str = "",
) -> Advice:
    """Return the cheapest changes with which a script fits into a given amount of GPU memory.

    Each combination of changes is simulated in a process of its own. Nothing is changed in the script.

    Args:
        script: A Python file, or ``-m`` and a module.
        arguments: Its arguments.
        memory: Memory that the process may use, such as ``24GiB``.
        gpu: A GPU listed by ``gpuledger gpus``.
        batch_argument: Name of the argument with the batch size; by default, the first with ``batch`` in its name.
        steps: Number of training steps to simulate.
        confidence: Confidence level of the upper bound, which has to fit.
        alloc_conf: Settings as in ``PYTORCH_CUDA_ALLOC_CONF``.

    Raises:
        UsageError: an argument is wrong, such as more memory than the GPU has.
        InputError: the unchanged script cannot be simulated.

    Source: simulated memory; FLOPs of matrix products, convolutions and attention, at the GPU's peak rates.

    Example:
        >>> import gpuledger
        >>> gpuledger.advise("train.py", "--batch-size", "32", memory="24GiB").changes  # doctest: +SKIP
    """
    order = Order((script, *arguments), find_card(gpu), steps, confidence, parse_alloc_conf(alloc_conf))
    return advise_program(order, parse_memory(memory), batch_argument)


def advise_program(order: Order, limit_bytes: int, batch_argument: str = "", output: TextIO | None = None) -> Advice:
    """Return the cheapest changes with which a program fits into ``limit_bytes``.

    Raises:
        UsageError: there is no such program or argument, or the memory is more than the GPU's or too little.
        InputError: the unchanged program cannot be simulated.
        ChildJobError: the child process crashed.
    """
    check_program(order.program)
    _check_limit(order.card, limit_bytes)
    given = {
        "card": order.card.key,
        "steps": order.steps or DEFAULT_STEPS,
        "settings": asdict(order.settings),
        "confidence": order.confidence,
        "limit_bytes": limit_bytes,
        "dtype": "bfloat16" if "bfloat16" in order.card.peak_tflop_s else "float16",
        "batch_place": _batch_place(order.program, batch_argument),
    }
    found = run_program_job("gpuledger.simulate.advice.child", given, order.program, output)
    tried = tuple(_tried(one) for one in found["tried"])
    unchanged = next(one for one in tried if one.combination == Combination())
    best = None if found["best"] is None else _tried(found["best"])
    return Advice(order.card, limit_bytes, unchanged, best, tried, tuple(found["unavailable"]), tuple(found["notes"]))


def _tried(found: Mapping[str, Any]) -> Tried:
    combination, applied = Combination(**found["combination"]), Applied.of(found["applied"])
    return Tried(**{**found, "combination": combination, "applied": applied})


def _check_limit(card: GpuModel, limit_bytes: int) -> None:
    """Check that a process may have that much memory, and needs less for its context.

    Raises:
        UsageError: it is more than the GPU has, or less than the context and libraries.
    """
    if limit_bytes > card.usable_bytes:
        raise UsageError(
            f"--fit {format_bytes(limit_bytes)}: a process on {card.key} can use {format_bytes(card.usable_bytes)}",
            hint="Name a larger GPU with --gpu, or less memory",
        )
    if limit_bytes <= card.outside_bytes:
        raise UsageError(
            f"--fit {format_bytes(limit_bytes)}: context and libraries alone need {format_bytes(card.outside_bytes)}",
            hint="For example --fit 24GiB",
        )


def _batch_place(program: tuple[str, ...], name: str) -> int:
    """Return the index of the batch size among a program's arguments; -1 if there is none.

    Raises:
        UsageError: the named argument is missing, or not a whole number above 0.
    """
    flag = name or argument_of_batches(program)
    return find_argument(program, flag, "--batch-argument")[0] if flag else -1


def argument_of_batches(program: Sequence[str]) -> str:
    """Return the program's argument with the size of training batches, by its name; "" if there is none."""
    for place, word in enumerate(program):
        flag, equals, value = word.partition("=")
        if not equals:
            value = program[place + 1] if place + 1 < len(program) else ""
        if _BATCH.fullmatch(flag) and not _OTHER_BATCH.search(flag) and value.isdecimal() and int(value) > 0:
            return flag
    return ""
