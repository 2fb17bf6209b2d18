"""The log next to MXNet's headerless CSV: the call stack of every allocation with an unknown tag.

The first version wrote the stack before its warning, later ones after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from gpuledger.formats.entries import MAX_KNOWN, UnreadParts, whole_lines
from gpuledger.formats.text_lines import decoded, shown

Frames = tuple[tuple[str, int, str], ...]
"""File, line and function of each frame, innermost first. Frames of libraries have no line, which is 0."""
MAX_FRAMES = 256
_WARNING = re.compile(r"Allocating (\S+) with unknown [mM]emory [tT]ag (.+)$", re.MULTILINE)
_FIRST_VERSION = "[memory_profiler::warning]"
_STACK = "Stack trace returned "
_FRAME = re.compile(r"\[bt\] \(\d+\) ([^(\[]+)(?:\((.*)\))?\s*(?:\[0x[0-9a-fA-F]+\])?$")


@dataclass(frozen=True)
class UnknownAllocation:
    """One warning: tag, size as in the log, and the number of its stack; -1 if it has none."""

    tag: str
    size: float
    stack_id: int


@dataclass
class StackLog:
    """Contents of a log. :meth:`take` returns each warning's stack once."""

    allocations: list[UnknownAllocation] = field(default_factory=list)
    stacks: list[Frames] = field(default_factory=list)
    _numbers: dict[Frames, int] = field(default_factory=dict)
    _waiting: dict[tuple[str, float | None], list[int]] | None = None

    def number(self, frames: Frames) -> int:
        """Return the number of a stack; equal stacks have the same number."""
        known = self._numbers.get(frames)
        if known is None:
            known = len(self.stacks)
            self.stacks.append(frames)
            if known < MAX_KNOWN:
                self._numbers[frames] = known
        return known

    def take(self, tag: str, size: float) -> int:
        """Return the stack of the next unused allocation of this tag and size; -1 if there is none."""
        if self._waiting is None:
            self._waiting = {}
            for one in reversed(self.allocations):
                self._waiting.setdefault((one.tag, one.size), []).append(one.stack_id)
        found = self._waiting.get((tag, size))
        return found.pop() if found else -1


def is_stack_log(head: bytes) -> bool:
    """Return whether a file starts like such a log."""
    return _WARNING.search(decoded(head)) is not None


def log_beside(path: Path) -> Path:
    """Return the path of the log that belongs to a CSV."""
    return path.with_suffix(".log")


def read_stack_log(path: Path, unread: UnreadParts) -> StackLog:
    """Return the warnings of a log with their stacks, in order. Other lines are ignored.

    Raises:
        OSError: it cannot be read.
    """
    log = StackLog()
    frames: list[tuple[str, int, str]] = []
    warned: tuple[str, float] | None = None
    loose = False

    def finish() -> None:
        nonlocal warned, loose
        if warned is not None:
            log.allocations.append(UnknownAllocation(*warned, log.number(tuple(frames)) if frames else -1))
            frames.clear()
        warned, loose = None, False

    for number, text in whole_lines(path, unread):
        found = _WARNING.search(text)
        frame = _FRAME.search(text.strip())
        if text.startswith(_STACK):
            loose = warned is None
            frames.clear()
        elif found is not None:
            size = _size_of(found[1])
            if size is None:
                unread.add(f"{path.name}: line {number:,}: a size that is no number: {shown(text)}")
                continue
            if not loose:
                finish()
            tag = found[2].strip()
            warned = (tag.removesuffix(".") if _FIRST_VERSION in text else tag), size
            if loose:
                finish()
        elif frame is not None and (warned or loose) and len(frames) < MAX_FRAMES:
            frames.append((frame[1].strip(), 0, frame[2] or ""))
    finish()
    return log


def _size_of(text: str) -> float | None:
    try:
        size = float(text)
    except ValueError:
        return None
    return size if 0 <= size < 1 << 44 else None
