"""Source lines: the Python stack of each block, and the line of it that a table shows."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.lifetimes import I64, distinct, read_numbers
from gpuledger.model.source_files import PACKAGES, is_framework, is_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuledger.model.run import Rank

BEFORE_RECORDING = "(before the recording)"
NO_STACKS = "(no stacks recorded)"
NO_STACK = "(no Python code)"
WITHOUT_LINE = frozenset({BEFORE_RECORDING, NO_STACKS, NO_STACK})
"""Labels of blocks without a line, by reason."""
NO_LINE = "(no line)"
"""Label of time and energy without a line."""
LINE, FUNCTION = "line", "function"


@dataclass(frozen=True)
class Frame:
    """One frame of a stack. ``line`` is None if it is not known.

    ``own``: of the program itself, not of a library. ``framework``: of PyTorch, Python's standard library or generated
    code.
    """

    file: str
    line: int | None
    function: str
    own: bool
    framework: bool = False


Stack = tuple[Frame, ...]
"""Frames, innermost first."""


def read_stacks(rank: Rank) -> dict[int, Stack]:
    """Return every stack of a rank by its id."""
    table = rank.table("stacks", ("stack_id", "frame_idx", "file", "line", "function"))
    columns = [table.column(name).to_pylist() for name in table.column_names]
    frames: dict[tuple[str, int, str], Frame] = {}
    found: dict[int, list[tuple[int, Frame]]] = {}
    for stack_id, place, *key in zip(*columns, strict=True):
        file, line, function = key
        frame = frames.setdefault((file, line, function), _frame(file, line, function))
        found.setdefault(stack_id, []).append((place, frame))
    return {number: tuple(frame for _, frame in sorted(listed, key=_place)) for number, listed in found.items()}


def _place(item: tuple[int, Frame]) -> int:
    return item[0]


def _frame(file: str, line: int, function: str) -> Frame:
    return Frame(file, line or None, function, is_own(file, function), is_framework(file, function))


def own_frame(stack: Stack) -> Frame | None:
    """Return the innermost frame of the program itself; None if the stack has none."""
    return next((frame for frame in stack if frame.own), None)


def source_frame(stack: Stack) -> Frame | None:
    """Return the innermost frame outside PyTorch and Python's standard library, otherwise the innermost one.

    It can be of another library: the lines of a model of transformers say more than the one that calls the model.
    """
    return next((frame for frame in stack if not frame.framework), stack[0] if stack else None)


def program_directory(stacks: Iterable[Stack]) -> str:
    """Return the directory of the program's main file, with a separator at its end; "" if it is not known.

    The stacks of other threads and of spawned processes do not contain the main file. If there are no others, it is the
    directory that contains all files of the program.
    """
    mains: Counter[str] = Counter()
    others: set[str] = set()
    for stack in stacks:
        frame = next((frame for frame in reversed(stack) if frame.own and os.path.isabs(frame.file)), None)
        if frame is None:
            continue
        directory = os.path.dirname(frame.file)
        if frame is stack[-1] and frame.function == "<module>":
            mains[directory] += 1
        else:
            others.add(directory)
    found = mains.most_common(1)[0][0] if mains else os.path.commonpath(others) if others else ""
    return f"{found}{os.sep}" if found.strip(os.sep) else ""


def short_file(file: str, directory: str) -> str:
    """Return a file's path relative to ``directory``, or to the directory of installed packages."""
    *_, inside = re.split(PACKAGES.replace("(site|dist)", "(?:site|dist)"), file)
    return inside.removeprefix(directory)


def line_text(frame: Frame, directory: str) -> str:
    """Return ``file:line function``."""
    place = short_file(frame.file, directory) + ("" if frame.line is None else f":{frame.line}")
    return f"{place} {frame.function}".rstrip()


def function_text(frame: Frame, directory: str) -> str:
    """Return ``file function``."""
    return f"{short_file(frame.file, directory)} {frame.function}".rstrip()


def coded_lines(rank: Rank, device_idx: int, group_by: str = LINE) -> tuple[I64, list[str]]:
    """Return each block's source line as a position in a list of texts, and that list.

    A block without a stack has one of :data:`WITHOUT_LINE`. ``group_by`` is one of :data:`TEXTS`.
    """
    stacks = read_stacks(rank)
    texts = line_texts(stacks, group_by)
    none = NO_STACK if stacks else NO_STACKS
    stack_ids = read_numbers(rank, "blocks", "stack_id", device_idx)
    before = (stack_ids < 0) & (read_numbers(rank, "blocks", "alloc_index", device_idx) < 0)
    points, place = distinct(np.where(before, -2, stack_ids))
    reasons = {-2: BEFORE_RECORDING, -1: none}
    found = [reasons.get(number) or texts.get(number, none) for number in points.tolist()]
    positions = {text: position for position, text in enumerate(dict.fromkeys(found))}
    return np.array([positions[text] for text in found], dtype=np.int64)[place], list(positions)


TEXTS = {LINE: line_text, FUNCTION: function_text}
"""What rows are made of -> the text of a frame."""


def line_texts(stacks: Mapping[int, Stack], group_by: str = LINE) -> dict[int, str]:
    """Return the text of each stack's source line, or of its function; ``group_by`` is one of :data:`TEXTS`."""
    directory, text = program_directory(stacks.values()), TEXTS[group_by]
    return {
        number: text(frame, directory) for number, stack in stacks.items() if (frame := source_frame(stack)) is not None
    }
