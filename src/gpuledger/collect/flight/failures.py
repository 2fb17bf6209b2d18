"""Out-of-memory errors of the whole program: the first and the worst are recorded fully, the others are counted."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count, islice
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import nn

from gpuledger.collect.adapter import dynamo, torch_private
from gpuledger.collect.adapter.frames import frame_of_backward, locals_of
from gpuledger.collect.adapter.program_objects import attributes_of, known_sizes, tensors_in, without_overrides
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.stacks import MAX_FRAMES, StackTable
from gpuledger.collect.flight.backward_module import module_in_backward
from gpuledger.collect.flight.census import Census
from gpuledger.collect.memory.cuda_history import block_columns, segment_columns
from gpuledger.collect.memory.history_columns import HistoryStacks, signed, sizes_of
from gpuledger.collect.memory.out_of_memory import largest_free_block_bytes
from gpuledger.model.journal.journal import TORCH_ACTIONS, TORCH_STATES, Action, BlockState, Part

MOST_KEPT = 2
"""The first error and the worst: the one with the most allocated bytes."""

_MUCH_WORSE = 1.01
"""Ratio of allocated bytes above which an error replaces the worst one, or is recorded beside another of its step.

cuDNN asks for one workspace after the other, and goes on without.
"""
_CALL = nn.Module._call_impl.__code__
_OUTSIDE = ("torch", "gpuledger", "numpy")
"""Packages with frames that are not the program's."""
_FILES = (os.path.dirname(torch.__file__) + os.sep, "<eval_with_key>")
"""Beginnings of the names of PyTorch's files, and of code that it writes."""
_SHAPES = 6


class Failures:
    """Records out-of-memory errors.

    Args:
        journal: Where they are written.
        registry: Ids of modules.
        stacks: Ids of Python stacks.
    """

    def __init__(self, journal: RankJournal, registry: ModuleRegistry, stacks: StackTable) -> None:
        self.has_stacks = False
        """Whether blocks can have Python stacks of allocations after the recorded steps."""
        self.facts: list[dict[str, Any]] = []
        self.module_at_work: Callable[[], int] = lambda: -1
        """Returns the id of the module whose code the calling thread runs, in the recorded steps; -1 if unknown."""
        self._journal = journal
        self._registry = registry
        self._table = stacks
        self._stacks = HistoryStacks(stacks)
        self._busy = threading.Lock()
        self._numbers = count()
        self._highest_bytes = -1
        self._earlier: Census | None = None
        self._earlier_bytes = 0
        self._has_refused = False
        """Whether an operator's request of host memory was refused and recorded."""

    def compare_with(self, earlier: Census, in_use_bytes: int) -> None:
        """Look at an error for what has grown since ``earlier``, when ``in_use_bytes`` were allocated."""
        self._earlier, self._earlier_bytes = earlier, in_use_bytes

    def happened(self, facts: dict[str, Any], step: int) -> bool:
        """Record an error before the program receives it, or one of a library or of the host that ends the program.

        ``facts`` are those of the allocator's observer, of :func:`library_failures.find_library_failure`, or of
        :func:`host_failures.find_host_failure`. An exception that the program can handle has its ``traceback``, too.
        One that ends the program has ``was_counted`` if it was among those.

        Returns:
            Whether it should be written at once. Of host memory that is asked for again and again, this is the first
            error, the second, the fourth, and so on: a file for each would slow the program down.
        """
        if not self._busy.acquire(blocking=False):  # a second one, in another thread, while the first is written
            return self._count(facts, step)
        try:
            if facts["device_idx"] < 0:
                return self._record_host(facts, step)
            self._record(facts, step)
            return True
        finally:
            self._busy.release()

    def ended_program(self, text: str, place: TracebackType | None) -> None:
        """Note that an error with this text and traceback has ended the program, if it is the last that was seen."""
        known: dict[str, Any] = self.facts[-1] if self.facts else {}
        tried_bytes = known.get("last_tried_bytes") or known.get("tried_bytes")
        if tried_bytes is None or f"Tried to allocate {_as_torch_writes(tried_bytes)}." not in text:
            return
        known["ended_program"] = True
        if known["times"] > 1:
            request = self._request(None, place)
            known |= {f"last_{name}": request[name] for name in ("frames", "module_id", "inputs")}
        self._journal.fact(oom=self.facts)

    def _count(self, facts: dict[str, Any], step: int) -> bool:
        if not self.facts:
            return True
        times = self.facts[-1].get("times", 1) + 1
        self.facts[-1] |= {"times": times, "last_step": step, "last_tried_bytes": facts.get("tried_bytes")}
        self._journal.fact(oom=self.facts)
        return facts["device_idx"] >= 0 or not times & (times - 1)

    def _record(self, facts: dict[str, Any], step: int) -> None:
        allocated, allocations = _allocated(facts["device_idx"])
        is_worst = allocated > self._highest_bytes
        is_much_worse = allocated > _MUCH_WORSE * self._highest_bytes
        is_second = is_worst and len(self.facts) < MOST_KEPT and (is_much_worse or self.facts[0]["step"] != step)
        if self.facts and "library" not in facts and not is_second:
            self._count(facts, step)
            if not is_much_worse or len(self.facts) < MOST_KEPT:
                return
            replaced = self.facts.pop()  # this error was counted there
            self.facts[-1]["times"] += replaced["times"] - 1
        self._highest_bytes = max(allocated, self._highest_bytes)
        number = next(self._numbers)  # not that of an error that was replaced: its blocks can be in the journal
        started_ns = time.time_ns()
        is_full = self.has_stacks or torch_private.ring_is_on()
        snapshot = torch_private.full_snapshot() if is_full else torch_private.light_snapshot()
        ring_from_ns = torch_private.ring_from_ns()
        if not ring_from_ns:
            snapshot.pop("device_traces", None)  # single events, which say nothing of the order
        fact = {
            **self._request(sys._getframe(1)),
            "largest_free_bytes": largest_free_block_bytes(snapshot, facts["device_idx"]),
            **facts,
            "failure_id": number,
            "step": step,
            "t_ns": started_ns,
            "allocated_bytes": allocated,
            "allocations": allocations,
            "times": 1,
            "thread": _thread_name(),
            "is_main_thread": _is_main_thread(),
            "is_capturing": torch_private.is_capturing(),
            "ring_from_ns": ring_from_ns or None,
            "limit_frac": torch_private.memory_fraction(facts["device_idx"]),
            "alloc_conf": _settings_of(snapshot),
        }
        add_snapshot(self._journal.part, number, facts["device_idx"], snapshot)
        add_stacks(self._journal.part, number, facts["device_idx"], snapshot, self._stacks)
        del snapshot
        self.facts.append(fact)
        self._journal.fact(oom=self.facts)
        grown_bytes = max(allocated - self._earlier_bytes, 0)
        self._journal.fact(failure_census=Census(step, self._earlier, grown_bytes).as_fact())
        fact["took_ns"] = time.time_ns() - started_ns

    def _record_host(self, facts: dict[str, Any], step: int) -> bool:
        """Record that host memory could not be allocated.

        Of errors that end the program, each is kept. The others have been raised just now, and the program can try
        again and again: the first is kept, with the number of all.
        """
        may_go_on, was_counted = "traceback" in facts, facts.pop("was_counted", False)
        place = facts.pop("traceback", None)
        request: dict[str, Any] = {"frames": self._as_written(facts["frames"])}
        if may_go_on and self._has_refused:
            return self._count(facts, step)
        if was_counted and self.facts:
            self.facts[-1]["times"] -= 1
        if may_go_on:
            self._has_refused = True
            request = self._request(sys._getframe(1), place)
            request |= {"thread": _thread_name(), "is_main_thread": _is_main_thread()}
        self.facts.append({**facts, **request, "step": step, "t_ns": time.time_ns(), "times": 1})
        self._journal.fact(oom=self.facts)
        return True

    def _request(self, frame: FrameType | None, place: TracebackType | None = None) -> dict[str, Any]:
        """Return the line of the program that asked, the modules it was in, and the shapes of their inputs.

        ``frame`` is the innermost one that runs. ``place`` is the traceback of an exception that has left others.
        """
        frames: list[list[Any]] = []
        modules: list[nn.Module] = []
        found: dict[str, Any] = {
            **{"inputs": [], "in_optimizer": False, "is_training": None},
            "grad_enabled": torch.is_grad_enabled(),
            "in_backward": torch_private.is_in_backward(),
        }
        for at, line in _lines(frame, place):
            if len(frames) >= MAX_FRAMES:
                break
            code = at.f_code
            if code is _CALL:
                values = locals_of(at)
                module: Any = values.get("self")
                if issubclass(type(module), nn.Module) and not dynamo.is_compilers_own(module):
                    modules.append(module)
                found["is_training"] = attributes_of(module).get("training")
                found["inputs"] = _shapes((values.get("args", ()), values.get("kwargs", {})))
                del values, module
            name = str(at.f_globals.get("__name__", ""))
            found["in_optimizer"] |= name.startswith("torch.optim.")
            if is_of_program(at):
                frames.append([code.co_filename, line, code.co_name])
        if found["in_backward"] and not frames:
            frames = _frames_of_backward()
        numbers = [self._registry.register(module) for module in reversed(modules)]  # the outermost knows the paths
        number = numbers[-1] if numbers else self._module_in_backward()
        return {**found, "module_id": number, "frames": self._as_written(frames)}

    def _as_written(self, frames: list[list[Any]]) -> list[list[Any]]:
        """Return frames with lines of the program in the place of those of generated code."""
        return [list(one) for one in self._table.as_written(tuple([(file, line, name) for file, line, name in frames]))]

    def _module_in_backward(self) -> int | None:
        """Return the module whose backward asked, if it is known."""
        if not torch_private.is_in_backward():
            return None
        at_work = self.module_at_work()
        return at_work if at_work >= 0 else module_in_backward(self._registry)


def _frames_of_backward() -> list[list[Any]]:
    """Return the program's frames of the thread that waits for backward: file, line and function, innermost first."""
    waiting = None
    with suppress(Exception):  # an audit hook of the program can refuse to show the frames of threads
        waiting = frame_of_backward()
    own = (one for one in _lines(waiting, None) if is_of_program(one[0]))
    return [[at.f_code.co_filename, line, at.f_code.co_name] for at, line in islice(own, MAX_FRAMES)]


def is_of_program(frame: FrameType) -> bool:
    """Return whether a frame runs code of the program, and not of PyTorch, NumPy or gpuledger."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package not in _OUTSIDE and not frame.f_code.co_filename.startswith(_FILES)


def _lines(frame: FrameType | None, place: TracebackType | None) -> list[tuple[FrameType, int]]:
    """Return the frames that an exception has left and those that run, with their lines, innermost first."""
    found: list[tuple[FrameType, int]] = []
    while place is not None:
        found.insert(0, (place.tb_frame, place.tb_lineno))
        place = place.tb_next
    while frame is not None:
        found.append((frame, frame.f_lineno))
        frame = frame.f_back
    return found


def add_snapshot(part: Part, number: int, device_idx: int, snapshot: dict[str, Any]) -> None:
    """Append the segments, blocks and last events of one device to ``part``."""
    segments = [one for one in snapshot["segments"] if one["device"] == device_idx]
    if segments:
        part.add("failure_segments", failure_id=number, **segment_columns(segments))
        columns = block_columns(segments)
        del columns["stack_id"]
        part.add("failure_blocks", failure_id=number, **columns)
    trace = _events_of(snapshot, device_idx)
    if trace:
        part.add(
            "failure_events",
            failure_id=number,
            device_idx=device_idx,
            action=[TORCH_ACTIONS.get(entry["action"], Action.OTHER) for entry in trace],
            address=[entry.get("addr", 0) for entry in trace],
            bytes=sizes_of(trace),
            stream=[signed(entry["stream"]) for entry in trace],
        )


def add_stacks(part: Part, number: int, device_idx: int, snapshot: dict[str, Any], stacks: HistoryStacks) -> None:
    """Append the Python stacks that live blocks and allocations of one device have, each with its address."""
    blocks = [
        block
        for segment in snapshot["segments"]
        if segment["device"] == device_idx
        for block in segment["blocks"]
        if block.get("frames") and TORCH_STATES.get(block["state"], BlockState.ALLOCATED) == BlockState.ALLOCATED
    ]
    trace = [(place, entry) for place, entry in enumerate(_events_of(snapshot, device_idx)) if entry.get("frames")]
    for places, entries, name in (
        (-1, [{**block, "action": "alloc"} for block in blocks], "address"),
        ([place for place, _ in trace], [entry for _, entry in trace], "addr"),
    ):
        if entries:
            part.add(
                "failure_stacks",
                failure_id=number,
                event_idx=places,
                address=[entry[name] for entry in entries],
                stack_id=stacks.numbers(entries),
            )


def _events_of(snapshot: dict[str, Any], device_idx: int) -> list[dict[str, Any]]:
    traces = snapshot.get("device_traces") or []
    return traces[device_idx] if device_idx < len(traces) else []


def _as_torch_writes(size_bytes: int) -> str:
    """Return a size as the allocator's errors have it."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes > unit:
            return f"{size_bytes / unit:.2f} {name}"
    return f"{size_bytes} bytes"


def _allocated(device_idx: int) -> tuple[int, int]:
    """Return the allocated bytes, and the number of allocations since the process started."""
    stats = torch_private.memory_stats(device_idx)
    if not stats:
        return 0, 0
    return int(stats["allocated_bytes"]["all"]["current"]), int(stats["allocation"]["all"]["allocated"])


def _settings_of(snapshot: dict[str, Any]) -> str:
    settings = snapshot.get("allocator_settings") or {}
    return str(settings.get("PYTORCH_CUDA_ALLOC_CONF") or "")


def _shapes(values: object) -> list[list[int]]:
    with without_overrides():
        tensors = [tensor for tensor, _ in zip(tensors_in(values, 3), range(_SHAPES), strict=False)]
        return [list(known_sizes(tensor)) for tensor in tensors]


def _is_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _thread_name() -> str:
    """Return the name of the calling thread; "" for one that Python has not started, such as autograd's.

    ``threading.current_thread()`` would add such a thread to those of the program.
    """
    return next((thread.name for thread in threading.enumerate() if thread.ident == threading.get_ident()), "")
