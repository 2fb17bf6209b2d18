"""Python stacks, each stored once."""

from __future__ import annotations

import itertools
import os
from types import CodeType, FrameType

import torch
from torch.autograd import graph

import gpuledger
from gpuledger.collect.adapter import dynamo, torch_private
from gpuledger.model.journal.journal import Part

MAX_FRAMES = 64
"""Maximum number of frames of a stack. Trainers call a model's innermost module about 40 frames deep."""
MAX_SEEN = 100_000
_TORCH_FILES = torch.__file__.removesuffix("__init__.py")
_TRANSFORMS = tuple(f"{_TORCH_FILES}_functorch/{name}.py" for name in ("vmap", "eager_transforms"))
_COMPILER_FILES = f"{_TORCH_FILES}_dynamo/"
_OURS = os.path.dirname(os.path.abspath(gpuledger.__file__)) + os.sep

Frames = tuple[tuple[str, int, str], ...]
Place = tuple[int, int]
"""Ids of a module with generated code, and of the module inside it that a line of the code computes."""


class StackTable:
    """Assigns ids to stacks. Frames are ``(file, line, function)``, innermost first, without gpuledger's own."""

    def __init__(self) -> None:
        self.has_transforms = False
        """Whether a stack is inside a transform of ``torch.func`` (vmap, grad, jvp) that is not being compiled."""
        self._ids: dict[Frames, int] = {}
        self._new: dict[int, Frames] = {}
        self._numbers = itertools.count()
        self._written = 0
        self._seen: dict[tuple[int, ...], tuple[int, list[CodeType]]] = {}
        """Keys are the ids of the code objects and the positions in them.

        The values keep the objects alive, so that no id is reused. The code of an observed function refers to this
        table, and the garbage collector does not look into code: :meth:`forget_code` breaks the cycle.
        """
        self._sources: dict[tuple[str, int], Frames] = {}
        self._left_out: set[str] = set()
        """Generated files. A line that nothing is known of belongs to the line that calls the code."""
        self._places: dict[tuple[str, int], Place] = {}
        self._placed: dict[tuple[Frames, Place], int] = {}
        self._told = 0

    def add_sources(self, sources: dict[tuple[str, int], Frames]) -> None:
        """Replace lines of generated files by the lines that they were generated from.

        Args:
            sources: ``(file, line)`` -> frames, innermost first.
        """
        self._sources |= sources

    def leave_out(self, file: str) -> None:
        """Show the callers of a generated file where the lines that it was generated from are not known."""
        self._left_out.add(file)

    def add_places(self, places: dict[tuple[str, int], Place]) -> None:
        """Add the modules that lines of generated files compute. Stacks there have ids of their own for each module.

        Args:
            places: ``(file, line)`` -> place.
        """
        self._places |= places

    def intern(self, frames: Frames) -> int:
        """Return the id of a stack; -1 if it has no frames of the program."""
        known = self._ids.get(frames)
        if known is not None:
            return known
        kept = self.as_written(frames)
        if not kept:
            return -1
        place = next((self._places[one[:2]] for one in frames if one[:2] in self._places), None)
        number = self._ids.get(kept) if place is None else self._placed.get((kept, place))
        if number is None:
            new = next(self._numbers)
            self._new[new] = kept
            self.has_transforms |= _is_in_transform(kept)
            # another thread can have added the same stack
            number = self._ids.setdefault(kept, new) if place is None else self._placed.setdefault((kept, place), new)
        self._ids[frames] = number
        return number

    def as_written(self, frames: Frames) -> Frames:
        """Return frames with the lines of the program that generated lines are made from, and without our own."""
        written = [frame for one in frames for frame in self._sources.get(one[:2], (one,))]
        found = [
            dynamo.as_written(frame)
            for frame in written
            if not frame[0].startswith(_OURS) and frame[0] not in self._left_out
        ]
        # A tuple that grows from a generator raises SystemError if another thread lists all objects meanwhile.
        return tuple(found[:MAX_FRAMES])

    def intern_frame(self, frame: FrameType | None) -> int:
        """Return the id of the stack that starts at ``frame``."""
        codes: list[CodeType] = []
        places: list[int] = []
        at = frame
        while at is not None and len(codes) < 2 * MAX_FRAMES:
            codes.append(at.f_code)
            places.append(at.f_lasti)
            at = at.f_back
        key = (*map(id, codes), *places)
        known = self._seen.get(key)
        if known is None:
            if len(self._seen) >= MAX_SEEN:  # a program that compiles new code again and again
                self._seen.clear()
            known = self._seen[key] = (self.intern(frames_from(frame, len(codes))), codes)
        return known[0]

    def forget_code(self) -> None:
        """Release the program's code. Ids stay valid."""
        self._seen.clear()

    def drain(self, part: Part) -> None:
        """Write the stacks added since the last drain into ``part``."""
        while (frames := self._new.pop(self._written, None)) is not None:
            self._written += 1
            part.stacks.append(list(frames))
        if len(self._placed) != self._told:
            self._told = len(self._placed)
            part.facts["stack_modules"] = [[number, *place] for (_, place), number in self._placed.copy().items()]


def _is_in_transform(frames: Frames) -> bool:
    files = [frame[0] for frame in frames]
    return any(file in _TRANSFORMS for file in files) and not any(file.startswith(_COMPILER_FILES) for file in files)


def frames_from(frame: FrameType | None, count: int = 2 * MAX_FRAMES) -> Frames:
    """Return ``count`` frames, from ``frame`` outwards."""
    frames: list[tuple[str, int, str]] = []
    while frame is not None and len(frames) < count:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(frames)


def is_within_torch(frames: Frames) -> bool:
    """Return whether all frames are of torch itself, and there is one."""
    return bool(frames) and all(frame[0].startswith(_TORCH_FILES) for frame in frames)


def is_autograds_own(frame: FrameType | None) -> bool:
    """Return whether autograd itself calls an operator, and not Python code such as that of an ``autograd.Function``.

    Args:
        frame: The innermost Python frame that the operator is called from; None without one.
    """
    if torch_private.current_node() is None:
        return False
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH_FILES):
        if frame.f_code is graph._engine_run_backward.__code__:
            return True
        frame = frame.f_back
    return frame is None
