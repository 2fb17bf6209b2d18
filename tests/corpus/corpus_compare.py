"""What differs between a bare and a recorded execution of a program."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from corpus_outcome import Outcome
from corpus_programs import Program

DEPTH_TOLERANCE_FRAMES = 2

PROFILER_THREADS = 1
"""Native threads that torch's profiler starts when it is first used, and keeps: the timing pass uses it."""

DRIVER_THREAD, CUDA_PROFILER_THREADS = "cuda-EvtHandlr", 2
"""A native thread of a program that uses CUDA; those that the driver's profiler starts beside it, and keeps."""

DRIVER_DESCRIPTORS = ("/dev/nvidia", "anon_inode:[eventfd]", "pipe:", "socket:")
"""What the driver and its profiler open, and keep."""

_ABSENT = "(absent)"

_LOG_HEAD = re.compile(
    rb"(?m)^(\[?[A-Z]+)(:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+|\d{4} \d\d:\d\d:\d\d\.\d+( \d+)?)(?= )"
)
"""Time and process at the head of what torch's own libraries log."""

_ADDRESS = re.compile(rb"at 0x[0-9a-f]+")


def faults_of_program(program: Program, first: Outcome, second: Outcome) -> Iterator[str]:
    """Yield why a program is no test: it does not end as it says, or it prints something else each time."""
    if first.status != program.status:
        yield f"bare status {first.status}, its header says {program.status}"
        yield from first.stderr.decode(errors="replace").splitlines()[-3:]
    for name in ("status",) if "walks frames" in program.allowed else ("status", "stdout", "stderr"):
        if _text(first, name) != _text(second, name):
            yield f"two bare executions differ in {name}"


def differences(
    program: Program, first: Outcome, second: Outcome, recorded: Outcome, *, still_recording: bool = False
) -> Iterator[str]:
    """Yield what differs recorded, except in what two bare executions differ in already.

    Args:
        program: What ran.
        first: A bare execution.
        second: Another one.
        recorded: The recorded one.
        still_recording: Whether options have the recording last longer than the program expects: then hooks and
            replaced functions are there when it looks for them.
    """
    if recorded.status != first.status:
        yield f"status {first.status} bare, {recorded.status} recorded"
    if "walks frames" not in program.allowed:
        for name in ("stdout", "stderr"):
            bare_text, recorded_text = _text(first, name), _text(recorded, name)
            if bare_text != recorded_text:
                yield from (f"{name}: {line}" for line in _changed_lines(bare_text, recorded_text))
            if b"gpuledger" in recorded_text and b"gpuledger" not in bare_text:
                yield f"{name} names gpuledger"
    if recorded.processes_left != first.processes_left:
        yield f"{first.processes_left} processes left bare, {recorded.processes_left} recorded"
    yield from _compare("file", first.files, second.files, recorded.files)
    for label, state in first.reports.items():
        if label not in recorded.reports:
            yield f"report {label!r} was not written"
            continue
        states = [_without_history(one) for one in (state, second.reports.get(label, {}), recorded.reports[label])]
        if still_recording:
            states = [_without_recorder(one) for one in states]
        if "measuring" in program.allowed:
            states[2] = _without_profiler_thread(states[2])
        yield from _compare(label, *states)
    yield from (f"report {label!r} is new" for label in recorded.reports if label not in first.reports)
    if not program.allowed & {"recording ends early", "notes"}:
        yield from (f"run: {note}" for note in recorded.notes)


def _without_recorder(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state without what a recorder at work is known by."""
    return {key: value for key, value in state.items() if key not in ("hooks", "patched")}


def _without_profiler_thread(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state without the thread that Kineto has while a profile runs, one of those named after Python."""
    process = state.get("process")
    if not isinstance(process, dict):
        return state
    threads = list(process["native_threads"])
    threads.remove(next(one for one in reversed(threads) if one.startswith("python")))
    return {**state, "process": {**process, "native_threads": threads}}


def _without_history(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state without whether the allocator keeps events: with the flight recorder, it does until the end."""
    cuda = state.get("cuda")
    return {**state, "cuda": {k: v for k, v in cuda.items() if k != "history"}} if isinstance(cuda, dict) else state


def _text(outcome: Outcome, name: str) -> Any:
    value = getattr(outcome, name)
    return _ADDRESS.sub(b"at 0x", _LOG_HEAD.sub(rb"\1", value)) if isinstance(value, bytes) else value


def _changed_lines(before: bytes, after: bytes) -> list[str]:
    old, new = (text.decode(errors="replace").splitlines() for text in (before, after))
    changed = list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]
    return [line for line in changed if not line.startswith("@@")][:12] or ["ends of lines differ"]


def _compare(where: str, first: Any, second: Any, recorded: Any) -> Iterator[str]:
    """Yield the leaves that differ; those that differ between bare executions are noise of the program's own."""
    if isinstance(first, dict) and isinstance(recorded, dict):
        others = second if isinstance(second, dict) else {}
        for key in {**first, **recorded}:
            place = f"{where}.{key}" if where else str(key)
            yield from _compare(place, first.get(key, _ABSENT), others.get(key, _ABSENT), recorded.get(key, _ABSENT))
        return
    if first == recorded or first != second:
        return
    if where.endswith("random.numpy") and first == _ABSENT:  # the recorder has loaded NumPy, the program has not
        return
    if _ABSENT not in (first, recorded) and _is_tolerated(where.rpartition(".")[2], first, recorded):
        return
    if isinstance(first, list) and isinstance(recorded, list):
        gone = [one for one in first if one not in recorded]
        new = [one for one in recorded if one not in first]
        yield f"{where}: without {gone}, with {new}" if gone or new else f"{where}: {first} bare, {recorded} recorded"
        return
    yield f"{where}: {first} bare, {recorded} recorded"


def _is_tolerated(key: str, first: Any, recorded: Any) -> bool:
    if key in ("optimizer_pre", "optimizer_post"):  # the flight recorder counts steps until the program ends
        return bool(recorded == first + 1)
    if key == "meta_path":  # what waits for torch, in a program that has not imported it
        return bool([one for one in recorded if one != "sitecustomize._TorchWatch"] == first)
    if key.startswith("depth"):
        return bool(abs(first - recorded) <= DEPTH_TOLERANCE_FRAMES)
    if key == "descriptors":  # those of a driver that has been profiled, in a program that uses it
        new = Counter(recorded) - Counter(first)
        uses_driver = any(one.startswith("/dev/nvidia") for one in first)
        return (
            uses_driver
            and not Counter(first) - Counter(recorded)
            and all(one.startswith(DRIVER_DESCRIPTORS) for one in new)
        )
    if key == "warning_filters":  # what torch loads for its profiler and its compiler
        return bool([one for one in recorded if "sympy" not in one] == first)
    if key != "native_threads":
        return False
    most = CUDA_PROFILER_THREADS if DRIVER_THREAD in first else PROFILER_THREADS
    return -1 <= len(recorded) - len(first) <= most  # one fewer: ours has ended the thread that theirs would keep
