"""The largest value of a program's argument that fits a GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpuledger.errors import UsageError
from gpuledger.simulate.estimate.run import Order, estimate_program
from gpuledger.simulate.estimate.search import Search, Trial, find_largest
from gpuledger.units import format_bytes


def search_argument(order: Order, name: str, say: Callable[[str], None]) -> Search:
    """Return the largest value of ``--NAME`` with which a program fits. Tries each value in a child process.

    Raises:
        UsageError: the program's arguments have no ``--NAME`` with a whole number above 0.
        InputError: the program failed with a value that should fit.
    """
    place, start = find_argument(order.program, name)

    def try_value(value: int) -> Trial:
        program = set_argument(order.program, place, value)
        with tempfile.TemporaryDirectory() as directory:
            found = estimate_program(replace(order, program=program), Path(directory) / "trial.ledger")
        say(f"gpuledger: --{name.lstrip('-')} {value}: {format_bytes(found.peak_process_bytes)}, {found.fit.verdict}")
        return Trial(value, found.peak_process_bytes, found.fit.verdict, found.upper_bytes, bool(found.uncompiled))

    return find_largest(try_value, start, usable_bytes=order.card.usable_bytes)


def find_argument(program: tuple[str, ...], name: str) -> tuple[int, int]:
    """Return the index of the value of ``--NAME`` among a program's arguments, and the value.

    Raises:
        UsageError: it is missing, or not a whole number above 0.
    """
    flag = name if name.startswith("-") else f"--{name}"
    for place, word in enumerate(program):
        if word == flag and place + 1 < len(program):
            return place + 1, _whole(flag, program[place + 1])
        if word.startswith(f"{flag}="):
            return place, _whole(flag, word.partition("=")[2])
    raise UsageError(
        f"--find-batch {name}: {flag} is not among the program's arguments",
        hint=f"gpuledger estimate … train.py {flag} 8",
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
