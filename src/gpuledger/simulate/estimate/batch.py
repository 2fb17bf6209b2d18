"""The largest value of a program's argument that fits a GPU."""

from __future__ import annotations

from dataclasses import asdict
from typing import TextIO

from gpuledger.errors import UsageError
from gpuledger.processes.child_job import run_program_job
from gpuledger.simulate.estimate.run import Order, check_program
from gpuledger.simulate.estimate.search import Search, Trial


def search_argument(order: Order, name: str, output: TextIO | None = None) -> Search:
    """Return the largest value of ``--NAME`` with which a program fits.

    One child process loads torch and tries each value in a fork of its own.

    Args:
        order: The program and the GPU.
        name: The argument, with or without its dashes.
        output: Gets a line for each value; None drops it. The program's own output is dropped.

    Raises:
        UsageError: there is no such program, or its arguments have no ``--NAME`` with a whole number above 0.
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
    return Search(found["largest"], tuple(Trial(**trial) for trial in found["trials"]))


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
