"""Describe why a program failed on a simulated GPU, and where in its own code."""

from __future__ import annotations

import os
import re
import subprocess
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuledger.errors import InputError
from gpuledger.processes.child_job import ProgramTraceback
from gpuledger.simulate.assumptions import LARGEST, LEAST
from gpuledger.simulate.ranks.place import RankPlace
from gpuledger.simulate.rest.own_code import own_place

_WITHOUT_BYTES = re.compile(r"data is not allocated|data pointer|doesn't have storage|without storage", re.IGNORECASE)
DISTRIBUTED = ("FSDP", "torch.distributed", "torch.multiprocessing.spawn")
"""Parts that need several ranks."""
WHAT_TO_TELL = "Declare the shape of its result with gpuledger.fake_output (docs/estimate.md), or run it on a GPU"
CRASHED_HINT = "C++ code failed in this line without a GPU. Remove the call"
_FOREIGN = (
    ("/torch/distributed/fsdp/", DISTRIBUTED[0]),
    ("/torch/distributed/_composable/", DISTRIBUTED[0]),
    ("/torch/distributed/", DISTRIBUTED[1]),
    ("/torch/multiprocessing/spawn.py", DISTRIBUTED[2]),
    ("/torch/cuda/graphs.py", "a CUDA graph"),
    ("/triton/", "a Triton kernel"),
)


_RANKS = "Name the number of ranks with --world-size N"
_OF_TORCHRUN = frozenset(RankPlace(0, 1).environment())
_OF_ENVIRONMENT = (os.__file__, "<frozen os>")
_NEEDS = (
    (ModuleNotFoundError, "Install it in the environment in which gpuledger runs"),
    (FileNotFoundError, "An estimate reads the program's files: run it where they are"),
    (PermissionError, "An estimate reads the program's files: run it where they can be read"),
    (EOFError, "Give the program its input with a pipe or as arguments"),
    (OSError, "An estimate needs the files and the network that the program needs"),
)
"""Kind of error -> what the user can do."""


def hint_on(error: BaseException) -> str:
    """Return what the user can do about an error of the program; "" if it is not known."""
    frames = traceback.extract_tb(error.__traceback__)
    innermost = frames[-1].filename if frames else ""
    if isinstance(error, KeyError) and innermost in _OF_ENVIRONMENT:
        return _RANKS if error.args[0] in _OF_TORCHRUN else f"Set the environment variable {error.args[0]}"
    missing = str(error.filename) if isinstance(error, FileNotFoundError) else ""
    if missing.endswith("nvidia-smi") or type(error).__name__.startswith("NVML"):
        return "Ask torch.cuda for the GPU: it answers for the simulated one"
    if missing and innermost == subprocess.__file__:
        return f"Install {missing}, which the program starts"
    if isinstance(error, SystemExit) and error.code:
        return "The program ended itself before a step. Give it what it asks for"
    return next((hint for kind, hint in _NEEDS if isinstance(error, kind)), "")


def steps_again(outcome: Mapping[str, Any], steps: int | None) -> int | None:
    """Return the number of steps with which a program is followed again to the same place; None as far as needed.

    Args:
        outcome: How it ended the first time.
        steps: The number of steps that was asked for; None as far as needed.
    """
    is_whole = outcome["with_rest"] or (steps is None and outcome["ended"] == "exit")
    return None if is_whole else outcome["steps"] or steps


def reserved_bytes_of(outcome: Mapping[str, Any]) -> int | None:
    """Return the peak of reserved bytes of a program that was followed; None if it failed."""
    return outcome["peak_reserved_bytes"] if outcome.get("ended") in ("steps", "exit") else None


def reserved_with_both(follow: Callable[[str], Mapping[str, Any]]) -> dict[str, int | None]:
    """Return the peaks of reserved bytes with the least and the largest of assumed values; None if the program failed.

    A program without a value that differs between the two is followed once for both.

    Args:
        follow: Follows the program with an assumption, and returns how it ended.
    """
    least = follow(LEAST)
    largest = follow(LARGEST) if least.get("has_extremes", True) else least
    return {LEAST: reserved_bytes_of(least), LARGEST: reserved_bytes_of(largest)}


def describe_failure(error: BaseException, *, with_ranks: bool = False) -> dict[str, Any]:
    """Return the error's message, with the file and line of the program's own code.

    Args:
        error: What the program raised.
        with_ranks: Whether the program ran as one of several ranks, so that it could use ``torch.distributed``.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "place": own_place((frame.filename, frame.lineno or 0) for frame in frames),
        "hint": hint_on(error),
        "unmodelled": _unmodelled(error, frames, with_ranks),
    }


def _unmodelled(error: BaseException, frames: traceback.StackSummary, with_ranks: bool) -> str:
    """Return the part of the simulation that an error comes from; "" if it is an error of the program."""
    for part, name in _FOREIGN:
        if not (with_ranks and name in DISTRIBUTED) and any(part in frame.filename for frame in frames):
            return f"{name} is not supported on a simulated GPU"
    if isinstance(error, RuntimeError) and _WITHOUT_BYTES.search(str(error)):
        return "C++ code reads the values of a tensor, and an estimate computes none"
    return ""


def _hint_on(unmodelled: str) -> str:
    if "C++" in unmodelled:
        return WHAT_TO_TELL
    if any(name in unmodelled for name in DISTRIBUTED):
        return _RANKS
    return "Estimate the program without it"


def _first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "")


def refuse_failure(program: Sequence[str], outcome: dict[str, Any]) -> None:
    """Raise the failure of a program as an error.

    Raises:
        InputError: the program raised, ran no step, or uses something that cannot be simulated.
    """
    ended = outcome["ended"]
    name = program[1] if program[0] == "-m" else program[0]
    place = outcome.get("place") or name
    if ended == "ranks":
        raise InputError(outcome["message"], hint=outcome["hint"])
    if ended == "not modelled":
        raise InputError(f"{place}: {outcome['message']}", hint=WHAT_TO_TELL)
    if ended == "raised" and outcome.get("unmodelled"):
        raise InputError(
            f"{place}: {outcome['unmodelled']} ({outcome['kind']}: {_first_line(outcome['message'])})",
            hint=_hint_on(outcome["unmodelled"]),
        ) from ProgramTraceback(outcome["traceback"])
    if ended == "raised":
        shown = "The program raised this on the simulated GPU. Show where with: gpuledger -v estimate …"
        raise InputError(
            f"{place}: {outcome['kind']}: {_first_line(outcome['message'])}", hint=outcome.get("hint") or shown
        ) from ProgramTraceback(outcome["traceback"])
    if outcome["steps"] and not outcome["allocations"]:
        where = (outcome.get("optimizers") or [name])[0]
        raise InputError(f"{where}: did not use the GPU", hint="Move the model and its inputs there with .to('cuda')")
    status = outcome.get("status")
    if not outcome["steps"] and (status or not outcome["allocations"]):
        how = f" (exit status {status})" if status else ""
        why = "" if outcome.get("message", "").isdecimal() else _first_line(outcome.get("message", ""))
        raise InputError(
            f"{place}: no training step was seen{how}{f': {why}' if why else ''}",
            hint=outcome.get("hint") or "Check that the script calls an optimizer's step(), or its model",
        )
