"""Questions to PyTorch's message, its memory snapshot and gpuledger about one crash, and how each is read and graded.

A question without a function for a tool is one for which the tool has no output. A function returns a value, and never
knows the truth. A question is asked of a program only if the truth is known there.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crash_facts import Facts, shape_of
from crash_messages import bytes_in, shown_by_torch
from peer_grades import MISSING, Answer, Rule, Value, grade

FILE = "crash_programs.py"
IDLE = "inactive"
NO_POOL = (0, 0)


@dataclass(frozen=True)
class Question:
    """A question, the fact with the truth, and how near an answer must be; a text must be the same or end with it."""

    text: str
    fact: str
    within_frac: float | None = None

    def rule(self, facts: Facts) -> Rule:
        """Return the rule for one program."""
        if self.within_frac is not None:
            return Rule((self.fact,), self.within_frac)
        truth = str(facts[self.fact])
        return Rule(label=lambda text: text == truth or text.endswith((f".{truth}", f" {truth}")))


QUESTIONS = {
    "cause": Question("Why did the request fail?", "cause"),
    "request": Question("How many bytes were requested?", "tried_bytes", 0.01),
    "line": Question("Which line requested them?", "request_line"),
    "module": Question("Which module requested them?", "request_module"),
    "inputs": Question("What was the shape of the model's input?", "request_inputs"),
    "step": Question("In which step?", "step"),
    "allocated": Question("How many bytes did tensors have?", "allocated_bytes", 0.01),
    "idle": Question("How many bytes did PyTorch reserve, but not use?", "idle_bytes", 0.01),
    "private": Question("How many of these are in private pools?", "private_bytes", 0.01),
    "holding_line": Question("Which line holds most memory?", "holding_line"),
    "weights": Question("How many bytes are weights?", "weight_bytes", 0.01),
    "usual": Question("How many bytes did earlier steps need?", "usual_peak_bytes", 0.05),
    "growth": Question("By how many bytes did memory grow per step?", "growth_bytes", 0.05),
    "holder": Question("Which object of the program keeps them?", "holder"),
    "others": Question("How many bytes do other processes use?", "other_bytes", 0.05),
    "limit": Question("How many bytes may the process use?", "own_limit_bytes", 0.01),
}


@dataclass(frozen=True)
class Crash:
    """What there is to read after one crash.

    ``message`` is PyTorch's, ``traceback`` has the program's lines, ``snapshot`` is its pickle, ``failure`` and
    ``growth`` are what ``gpuledger show --json`` has.
    """

    planted: str
    message: str
    traceback: tuple[str, ...]
    snapshot: dict[str, Any] | None
    failure: dict[str, Any] | None
    growth: tuple[dict[str, Any], ...]

    @property
    def sentence(self) -> str:
        """The first sentence of ``show``."""
        cause = (self.failure or {}).get("cause") or {}
        return str(cause.get("sentence") or "")

    @property
    def state(self) -> dict[str, Any]:
        """The memory at the error, in gpuledger."""
        return (self.failure or {}).get("state") or {}

    @property
    def grown(self) -> dict[str, Any]:
        """The growth of the GPU's memory, in gpuledger."""
        return next((one for one in self.growth if one["device_idx"] >= 0), {})


def read_snapshot(place: Path) -> dict[str, Any] | None:
    """Return a snapshot that this machine's torch wrote a moment ago; None without one."""
    if not place.exists():
        return None
    found: dict[str, Any] = pickle.loads(place.read_bytes())
    return found


# the snapshot


def blocks_of(crash: Crash) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield each block of the snapshot, and whether it is in a private pool."""
    for segment in (crash.snapshot or {}).get("segments", ()):
        private = tuple(segment.get("segment_pool_id", NO_POOL)) != NO_POOL
        for block in segment["blocks"]:
            yield block, private


def failed_event(crash: Crash) -> dict[str, Any] | None:
    """Return the first out-of-memory event of the snapshot's history."""
    traces = (crash.snapshot or {}).get("device_traces", ())
    return next((event for trace in traces for event in trace if event["action"] == "oom"), None)


def frame_of(entry: dict[str, Any]) -> str | None:
    """Return ``FILE:LINE`` of an entry's innermost frame in the program."""
    frames = entry.get("frames") or ()
    return next((f"{FILE}:{one['line']}" for one in frames if one["filename"].endswith(f"/{FILE}")), None)


def snapshot_cause(crash: Crash) -> Value:
    """Return the planted cause if the sizes of the snapshot show it: more free bytes than requested, also by pool."""
    event = failed_event(crash)
    if event is None:
        return None
    tried = float(event["size"])
    idle = [(float(block["size"]), private) for block, private in blocks_of(crash) if block["state"] == IDLE]
    shown = {
        "fragmentation": sum(size for size, private in idle if not private) > tried,
        "private_pool": sum(size for size, private in idle if private) > tried,
    }
    return crash.planted if shown.get(crash.planted) else None


def snapshot_sum(crash: Crash, *, idle: bool, private: bool | None = None) -> Value:
    """Return the bytes of free blocks, or of those with tensors."""
    if crash.snapshot is None:
        return None
    sizes = [
        block["size"]
        for block, is_private in blocks_of(crash)
        if (block["state"] == IDLE) == idle and private in (None, is_private)
    ]
    return float(sum(sizes))


def snapshot_holding_line(crash: Crash) -> Value:
    """Return the line with most bytes of the blocks with tensors."""
    sizes: dict[str, int] = {}
    for block, _ in blocks_of(crash):
        line = frame_of(block)
        if block["state"] != IDLE and line is not None:
            sizes[line] = sizes.get(line, 0) + block["size"]
    return max(sizes, key=lambda line: sizes[line], default=None)


def snapshot_request(crash: Crash) -> Value:
    """Return the size of the out-of-memory event."""
    event = failed_event(crash)
    return None if event is None else float(event["size"])


# gpuledger


def place_only(line: str | None) -> str | None:
    """Return ``FILE:LINE`` of ``FILE:LINE in FUNCTION``, without the folder."""
    return Path(line.partition(" ")[0]).name if line else None


def run_holding_line(crash: Crash) -> Value:
    """Return the line with most bytes at the error, if it has more than all blocks without one; else the grown one."""
    lines: dict[str, int] = crash.state.get("lines") or {}
    most = max(lines, key=lambda line: lines[line], default=None)
    unknown_bytes = crash.state.get("allocated_bytes", 0) - sum(lines.values())
    known = most if most is not None and lines[most] > unknown_bytes else None
    return place_only(known or crash.grown.get("line"))


def run_inputs(crash: Crash) -> Value:
    """Return the shape of the outermost module's first input."""
    shapes = (crash.failure or {}).get("inputs") or ()
    return shape_of(shapes[0]) if shapes else None


def run_idle(crash: Crash) -> Value:
    """Return the free bytes of all kinds."""
    free: dict[str, float] | None = crash.state.get("free")
    if free is None:
        return None
    kinds = ("usable_bytes", "other_stream_bytes", "private_pool_bytes", "other_size_bytes")
    return float(sum(free[name] for name in kinds))


def run_holder(crash: Crash) -> Value:
    """Return the object that has grown most."""
    holder = crash.grown.get("holder") or {}
    return str(holder["name"]) if holder.get("name") else None


Asking = Callable[[Crash], Value]


def _of_failure(name: str) -> Asking:
    return lambda crash: (crash.failure or {}).get(name)


ANSWERS: dict[str, dict[str, Asking]] = {
    "message": {
        "cause": lambda crash: crash.planted if shown_by_torch(crash.planted, crash.message) else None,
        "request": lambda crash: bytes_in(crash.message, "Tried to allocate {}"),
        "line": lambda crash: crash.traceback[-1] if crash.traceback else None,
        "allocated": lambda crash: bytes_in(crash.message, "Of the allocated memory {} is allocated"),
        "idle": lambda crash: bytes_in(crash.message, "{} is reserved by PyTorch but unallocated"),
        "private": lambda crash: bytes_in(crash.message, "with {} allocated in private pools"),
        "others": lambda crash: bytes_in(crash.message, r"Process \d+ has {} memory in use"),
        "limit": lambda crash: bytes_in(crash.message, "{} allowed;"),
    },
    "snapshot": {
        "cause": snapshot_cause,
        "request": snapshot_request,
        "line": lambda crash: frame_of(failed_event(crash) or {}),
        "allocated": lambda crash: snapshot_sum(crash, idle=False),
        "idle": lambda crash: snapshot_sum(crash, idle=True),
        "private": lambda crash: snapshot_sum(crash, idle=True, private=True),
        "holding_line": snapshot_holding_line,
    },
    "gpuledger": {
        "cause": lambda crash: ((crash.failure or {}).get("cause") or {}).get("kind"),
        "request": _of_failure("tried_bytes"),
        "line": lambda crash: place_only((crash.failure or {}).get("line")),
        "module": _of_failure("module"),
        "inputs": run_inputs,
        "step": _of_failure("step"),
        "allocated": lambda crash: crash.state.get("allocated_bytes"),
        "idle": run_idle,
        "private": lambda crash: (crash.state.get("free") or {}).get("private_pool_bytes"),
        "holding_line": run_holding_line,
        "weights": lambda crash: (crash.state.get("categories") or {}).get("weight"),
        "usual": lambda crash: bytes_in(crash.sentence, "median peak of earlier steps is {}"),
        "growth": lambda crash: crash.grown.get("step_bytes"),
        "holder": run_holder,
        "others": lambda crash: ((crash.failure or {}).get("besides") or {}).get("other_process_bytes"),
        "limit": lambda crash: bytes_in(crash.sentence, "may use only {}"),
    },
}


def answers_of(tool: str, crash: Crash, facts: Facts) -> dict[str, Answer]:
    """Return the grade of a tool's answer to each question of which the truth is known."""
    found: dict[str, Answer] = {}
    for name, question in QUESTIONS.items():
        if facts.get(question.fact) in (None, "", 0):
            continue
        asks = ANSWERS[tool].get(name)
        value = None if asks is None else asks(crash)
        found[name] = grade(value, question.rule(facts), facts) if value is not None else Answer(MISSING)
    return found


def without_folders(document: Any) -> Any:
    """Return a document of a run in which files of this repository have no folder of the machine before them."""
    return json.loads(re.sub(r'/[^"\s]*/(bench/lib/)', r"\1", json.dumps(document)))


def grade_lines_again(program: dict[str, Any]) -> None:
    """Grade gpuledger's answers that are lines again, from what a result has of one program."""
    program |= {name: without_folders(program[name]) for name in ("failure", "growth", "answers") if name in program}
    crash = Crash(program["planted"], "", (), None, program.get("failure"), tuple(program.get("growth") or ()))
    answers = answers_of("gpuledger", crash, program.get("truth") or {})
    told = program.get("answers", {}).get("gpuledger", {})
    told |= {name: asdict(answer) for name, answer in answers.items() if name in ("line", "holding_line")}
