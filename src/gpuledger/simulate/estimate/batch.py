"""The largest value of a program's argument that fits a GPU."""

from __future__ import annotations

from dataclasses import asdict
from typing import TextIO

from gpuledger.errors import UsageError
from gpuledger.processes.child_job import run_program_job
from gpuledger.simulate.estimate.run import Order, check_program
from gpuledger.simulate.estimate.search import MOST, Search, Trial
from gpuledger.units import format_bytes


def search_argument(order: Order, name: str, output: TextIO | None = None) -> Search:
    """Return the largest value of ``--NAME`` with which a program fits.

    One child process loads torch and tries each value in a fork of its own.

    Args:
        order: The program and the GPU.
        name: The argument, with or without its dashes.
        output: Gets a line for each value; None drops it. The program's own output is dropped.

    Raises:
        UsageError: there is no such program, its arguments have no ``--NAME`` with a whole number above 0, or its
            memory does not change with it.
        InputError: the program failed with a value that should fit.
        ChildJobError: the child process crashed.
    """
    place, start = find_argument(order.program, name)
    check_program(order.program)
    given = {
        "card": order.card.key,
        "steps": order.steps,
        "settings": asdict(order.settings),
        "confidence": order.confidence,
        "name": name.lstrip("-"),
        "place": place,
        "start": start,
    }
    found = run_program_job("gpuledger.simulate.estimate.batch_child", given, order.program, output)
    search = Search(found["largest"], tuple(Trial(**trial) for trial in found["trials"]))
    _check_use(search, name)
    return search


def _check_use(found: Search, name: str) -> None:
    """Check that a program's memory changed with its argument.

    Raises:
        UsageError: it is the same for all values up to the largest that is tried.
    """
    sizes = {trial.process_bytes for trial in found.trials}
    if found.largest != MOST or len(sizes) != 1:
        return
    first, flag, size = found.trials[0].value, _flag(name), format_bytes(found.trials[0].process_bytes or 0)
    raise UsageError(
        f"--find-batch {name}: the peak is {size} for every value of {flag} from {first:,} to {MOST:,}",
        hint=f"Check that the script uses {flag}, and not another value that is written in it",
    )


def _flag(name: str) -> str:
    return name if name.startswith("-") else f"--{name}"


def find_argument(program: tuple[str, ...], name: str, option: str = "--find-batch") -> tuple[int, int]:
    """Return the index of the value of ``--NAME`` among a program's arguments, and the value.

    ``option`` is what names it on our command line.

    Raises:
        UsageError: it is missing, or not a whole number above 0.
    """
    flag = _flag(name)
    for place, word in enumerate(program):
        if word == flag and place + 1 < len(program):
            return place + 1, _whole(flag, program[place + 1])
        if word.startswith(f"{flag}="):
            return place, _whole(flag, word.partition("=")[2])
    raise UsageError(
        f"{option} {name}: {flag} is not among the program's arguments",
        hint=f"Add {flag} with the first value to try, even if the script has a default: gpuledger estimate … train.py "
        f"{flag} 8. If the value is a constant in the script, let the script take it from the option {flag}",
    )


def _whole(flag: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{flag} {text}: expected a whole number of 1 or more")
    return int(text)


def set_argument(program: tuple[str, ...], place: int, value: int) -> tuple[str, ...]:
    """Return a program's arguments with another value at index ``place``."""
    word = program[place]
    text = f"{word.partition('=')[0]}={value}" if word.startswith("-") else str(value)
    return (*program[:place], text, *program[place + 1 :])
