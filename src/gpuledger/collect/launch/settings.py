"""Recording settings of a process, read from its environment, so that a child needs no extra arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuledger.config import NO, OPTIONS, YES
from gpuledger.errors import UsageError

DEFAULT_FIRST_STEP = 1
DEFAULT_LAST_STEP = 3

ALL_STEPS = 1 << 40
"""Last step of a recording without an end."""


def parse_steps(text: str) -> tuple[int, int]:
    """Return ``(first, last)`` of ``A:B``, both included, or of a single number.

    Raises:
        UsageError: not two whole numbers with 1 <= A <= B.
    """
    first, colon, last = text.partition(":")
    if not first.strip().isdecimal() or (colon and not last.strip().isdecimal()):
        raise UsageError(f"steps {text!r}: expected FIRST:LAST", hint="For example --steps 1:3")
    return check_steps((int(first), int(last) if colon else int(first)), shown=text)


def check_steps(steps: object, *, shown: str | None = None) -> tuple[int, int]:
    """Return ``steps`` if it is ``(first, last)``, both included. Errors have ``shown`` in its place.

    Raises:
        UsageError: not two whole numbers with 1 <= first <= last.
    """
    found = repr(steps if shown is None else shown)
    if not (isinstance(steps, (tuple, list)) and len(steps) == 2 and all(type(step) is int for step in steps)):
        raise UsageError(f"steps {found}: expected (first, last)", hint="For example steps=(1, 3)")
    first, last = steps
    if not 1 <= first <= last:
        raise UsageError(
            f"steps {found}: the first must be 1 or more, and not after the last", hint="For example --steps 1:3"
        )
    return first, last


ALL_RANKS, SAMPLE = "all", "sample"
"""Ranks with events beside their summaries: all, or some that stand for the others; or a list of numbers."""
_RANKS_HINT = f"Use {ALL_RANKS}, {SAMPLE}, or numbers such as 0,8-11"


def parse_ranks(text: str) -> str | frozenset[int]:
    """Return ``all``, ``sample``, or the numbers of a list such as ``0,8-11``.

    Raises:
        UsageError: it is none of these.
    """
    if text in (ALL_RANKS, SAMPLE):
        return text
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)) or len(first + last) > 12:
            raise UsageError(f"--ranks {text}: not a list of ranks", hint=_RANKS_HINT)
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or len(numbers) > 1_000_000:
            raise UsageError(f"--ranks {text}: {part.strip()} is not a range of ranks", hint=_RANKS_HINT)
        found.update(numbers)
    return frozenset(found)


AUTO, MODULE, OPTIMIZER, MARK, CALL = "auto", "module", "optimizer", "mark", "call:"
"""What ends a step: chosen by what the program does, a call of the outermost module, a step of the first optimizer, a
call of :func:`gpuledger.step`, or (followed by a name) a call of the modules with that path or class."""


def parse_step_on(text: str) -> str:
    """Return ``text`` if it says what ends a step.

    Raises:
        UsageError: it does not.
    """
    is_call = isinstance(text, str) and text.startswith(CALL) and text.removeprefix(CALL).strip()
    if text not in (AUTO, MODULE, OPTIMIZER, MARK) and not is_call:
        raise UsageError(
            f"step-on {text!r}: expected {AUTO}, {MODULE}, {OPTIMIZER}, {MARK} or {CALL}NAME",
            hint=f"For example --step-on {OPTIMIZER}, or --step-on {CALL}UNet2DConditionModel",
        )
    return text


def name_of_call(step_on: str) -> str | None:
    """Return the path or class of the modules with the calls that are steps; None if steps are something else."""
    return step_on.removeprefix(CALL).strip() if step_on.startswith(CALL) else None


MEASUREMENT = {"memory": "memory recording", "energy": "energy measurement", "time": "timing measurement"}
"""Name of each measurement in messages."""

PASSES = tuple(MEASUREMENT)
"""Names of the measurements."""


def parse_passes(text: str) -> dict[str, int]:
    """Return measurement -> number of steps from a list such as ``memory,time:4``; 0 if the list has no number.

    Raises:
        UsageError: it is no text, a name is unknown, ``memory`` is missing, or a number of steps is not a whole number
            above 0.
    """
    if not isinstance(text, str):
        raise UsageError(f"passes {text!r}: not a text", hint="For example passes='memory,energy,time'")
    words = (word.strip().partition(":") for word in text.split(",") if word.strip())
    wanted = {}
    for name, colon, steps in words:
        if name not in PASSES:
            raise UsageError(
                f"passes {text!r}: unknown measurement {name!r}", hint=f"Use one or more of {','.join(PASSES)}"
            )
        if colon and name == "memory":
            raise UsageError(
                f"passes {text!r}: the steps of memory are those of --steps", hint="For example --steps 1:3"
            )
        if colon and not (steps.isdecimal() and int(steps)):
            raise UsageError(f"passes {text!r}: expected {name}:STEPS", hint=f"For example {name}:4")
        wanted[name] = int(steps or 0)
    if "memory" not in wanted:
        raise UsageError(f"passes {text!r}: memory cannot be left out", hint="For example memory,energy,time")
    return wanted


@dataclass(frozen=True)
class RecordSettings:
    """Recording settings of one process. Steps ``first_step`` to ``last_step`` are recorded, both included.

    ``passes`` maps each wanted measurement to its number of steps; 0 means its default. ``passes_asked`` is True if the
    user has named the measurements. Default measurements run only if nothing prevents it, and skipping them is no
    fault. ``step_on`` says what ends a step. With ``flight_recorder``, counters and out-of-memory errors are recorded
    until the program ends.
    """

    run_directory: Path
    first_step: int = DEFAULT_FIRST_STEP
    last_step: int = DEFAULT_LAST_STEP
    stacks: bool = True
    devices: str = "auto"
    passes: Mapping[str, int] = field(default_factory=lambda: {"memory": 0})
    passes_asked: bool = True
    step_on: str = AUTO
    flight_recorder: bool = False


def settings_from(environment: Mapping[str, str] = os.environ) -> RecordSettings | None:
    """Return the settings in ``GPULEDGER_*``; None if this process is not to be recorded.

    Raises:
        UsageError: a value cannot be read.
    """
    run = environment.get("GPULEDGER_RUN")
    if not run:
        return None
    first, last = parse_steps(environment.get("GPULEDGER_STEPS") or f"{DEFAULT_FIRST_STEP}:{DEFAULT_LAST_STEP}")
    passes = environment.get("GPULEDGER_PASSES")
    return RecordSettings(
        run_directory=Path(run).absolute(),
        first_step=first,
        last_step=last,
        stacks=environment.get("GPULEDGER_STACKS", "").lower() not in NO,
        devices=environment.get("GPULEDGER_DEVICES", "auto"),
        passes=parse_passes(passes or OPTIONS["passes"].default),
        passes_asked=bool(passes),
        step_on=parse_step_on(environment.get("GPULEDGER_STEP_ON") or AUTO),
        flight_recorder=environment.get("GPULEDGER_FLIGHT_RECORDER", "").lower() in YES,
    )
