"""Memory without a name: live blocks without module, tensor name and scope, and advice on how to name them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.breakdown import coded_categories, coded_texts, sum_by_texts
from gpuledger.analyze.memory.entries import is_tagged
from gpuledger.analyze.memory.lifetimes import I64, read_labels, read_lives, read_numbers
from gpuledger.analyze.memory.lines.source_lines import Stack, own_frame, read_stacks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuledger.analyze.memory.instant import Instant
    from gpuledger.model.run import Rank

NAMELESS_TAG = re.compile(r"unknown|<unk>|untagged|ctx_source_unclear", re.ASCII)
"""Texts that older profilers wrote for unknown names."""
_LINE_NAME = re.compile(r"\.py:[0-9]+ \S+$")
"""Name of a block in an imported memory snapshot without metadata: a line of its stack, which is not a name."""
_LOG_ADVICE = (
    "the log has no name for it; put it into a group with a keyword that matches its tag: gpuledger group --keywords"
)
_LINES_ADVICE = "a snapshot has source lines only; record the program with gpuledger run to see category and module"
BEFORE = -1
"""Step of a block that was alive before the recording began."""


@dataclass(frozen=True)
class Unknown:
    """Live blocks without a name that share category, phase, step, tag and stack (innermost frame first)."""

    category: str
    phase: str
    step: int
    tag: str
    bytes: int
    blocks: int
    stack: Stack
    advice: str


@dataclass(frozen=True)
class Unknowns:
    """All memory without a name at one instant, largest first."""

    instant: Instant
    allocated_bytes: int
    bytes: int
    blocks: int
    items: tuple[Unknown, ...]


def list_unknown(rank: Rank, instant: Instant) -> Unknowns:
    """Return the live blocks without module, tensor name and scope, or with a tag that means "unknown".

    Source: caching allocator's history or the imported file.
    """
    device = instant.device_idx
    lives = read_lives(rank, device)
    live = lives.allocated_at(instant.index)
    nameless = live & _nameless(rank, device)
    requested = lives.requested_bytes[nameless]
    steps = np.where(lives.alloc_index < 0, BEFORE, read_numbers(rank, "blocks", "step", device))
    codes, phases = read_labels(rank, "blocks", "phase", device)
    words = [
        coded_categories(rank, device),
        (codes + 1, ["", *phases]),
        coded_texts(rank, device, "name_id"),
        _as_words(steps),
        _as_words(read_numbers(rank, "blocks", "stack_id", device)),
    ]
    stacks = read_stacks(rank)
    foreign_advice = _foreign_advice(rank)
    items = []
    for texts, size, blocks in sum_by_texts([(code[nameless], text) for code, text in words], requested):
        category, phase, name, step, stack_id = texts
        stack = stacks.get(int(stack_id), ())
        tag = name if is_tagged(rank) else ""
        advice = foreign_advice or _advice(int(step), stack, has_stacks=bool(stacks))
        items.append(Unknown(category, phase, int(step), tag, size, blocks, stack, advice))
    items.sort(key=lambda item: (-item.bytes, item.category, item.phase, item.step, item.tag))
    allocated = int(lives.allocated_bytes[live].sum())
    return Unknowns(instant, allocated, int(requested.sum()), int(nameless.sum()), tuple(items))


def _nameless(rank: Rank, device_idx: int) -> NDArray[np.bool_]:
    codes, texts = coded_texts(rank, device_idx, "name_id")
    if is_tagged(rank):
        return np.array([not text or NAMELESS_TAG.search(text) is not None for text in texts], dtype=bool)[codes]
    lines = rank.manifest.recorder.has_lines_as_names
    nameless = np.array([not text or (lines and _LINE_NAME.search(text) is not None) for text in texts], dtype=bool)
    outside = read_numbers(rank, "blocks", "module_id", device_idx) < 0
    unscoped = read_numbers(rank, "blocks", "scope_id", device_idx) < 0
    found: NDArray[np.bool_] = nameless[codes] & outside & unscoped
    return found


def _as_words(numbers: I64) -> tuple[I64, list[str]]:
    points, place = np.unique(numbers, return_inverse=True)
    return place.astype(np.int64), [str(point) for point in points.tolist()]


def _foreign_advice(rank: Rank) -> str:
    """Return advice on blocks of an imported file; "" if the run was recorded."""
    if is_tagged(rank):
        return _LOG_ADVICE
    return _LINES_ADVICE if rank.manifest.recorder.has_lines_as_names else ""


def _advice(step: int, stack: Stack, *, has_stacks: bool) -> str:
    """Return advice on how to get a name for such blocks."""
    frame = own_frame(stack)
    if frame is not None:
        name = frame.function if frame.function.isidentifier() else "NAME"
        return f'with gpuledger.scope("{name}"): around line {frame.line} of {os.path.basename(frame.file)}'
    if stack:
        return "the stack has no line of the program itself; put gpuledger.scope around the call that leads here"
    if step == BEFORE:
        return "allocated before the recording began; start recording earlier, or allocate it inside gpuledger.scope"
    if not has_stacks:
        return "the run has no stacks; record it with gpuledger run --stacks to see the line that allocates it"
    return "no Python code was running in its thread; put gpuledger.scope around the code that starts the work"
