"""Python stacks, each kept once."""

from __future__ import annotations

import os
from types import FrameType

from gpuledger.model.journal import Part

MAX_FRAMES = 32
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

Frames = tuple[tuple[str, int, str], ...]


class StackBook:
    """Numbers stacks; frames are ``(file, line, function)``, innermost first, gpuledger's own left out."""

    def __init__(self) -> None:
        self._ids: dict[Frames, int] = {}
        self._new: list[Frames] = []

    def intern(self, frames: Frames) -> int:
        """Return the number of a stack; -1 for one without frames of the program."""
        known = self._ids.get(frames)
        if known is not None:
            return known
        kept = tuple(frame for frame in frames if not frame[0].startswith(_OURS))[:MAX_FRAMES]
        if not kept:
            return -1
        number = self._ids.get(kept)
        if number is None:
            number = self._ids[kept] = len(self._new) + self._written
            self._new.append(kept)
        self._ids[frames] = number
        return number

    _written = 0

    def intern_frame(self, frame: FrameType | None) -> int:
        """Return the number of the stack that begins at ``frame``."""
        frames: list[tuple[str, int, str]] = []
        while frame is not None and len(frames) < 2 * MAX_FRAMES:
            code = frame.f_code
            frames.append((code.co_filename, frame.f_lineno, code.co_name))
            frame = frame.f_back
        return self.intern(tuple(frames))

    def drain(self, part: Part) -> None:
        """Move the stacks that are new since the last drain into ``part``."""
        new, self._new = self._new, []
        self._written += len(new)
        part.stacks += [list(frames) for frames in new]
