"""Twenty questions, and for each tool the function that takes the answer out of what it wrote and checks it.

A question without a function for a tool is one for which the tool has no output. Whether an answer is right is decided
by comparison with the truth, in peer_grades.py.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer_grades import ABSENT, NO, NOTHING, PART, YES, Answer, between, counted, least, near, ranked
from peer_outputs import (
    Event,
    frame_line,
    ledger,
    live_by,
    memory_events,
    most_frequent,
    peak_of,
    shown,
    snapshot_blocks,
    snapshot_of,
    summed,
    table_rows,
    trace_events,
)
from peer_programs import LEAK_BYTES, PLANTED_LAYER, SPIKE_BYTES, SPIKE_STEP, WIDE, WINDOW, line_of

QUESTIONS = {
    "peak": "How many bytes are allocated at the peak?",
    "layer": "Which layer holds most of them?",
    "category": "How many are weights and optimizer state?",
    "line": "Which source line allocated most of them?",
    "outside": "What of the GPU's memory in use is not the allocator's?",
    "fits": "Would the program fit a GPU of 24 GiB?",
    "out_of_memory": "Why did it run out of memory?",
    "leak": "Which line allocates what stays after every step?",
    "later_step": "How much more did a step take that was not recorded?",
    "allocations": "When was one large block allocated and freed?",
    "rank": "Which of two processes holds more?",
    "compiled": "Which layer holds most, with torch.compile?",
    "layer_time": "How many ms does each layer take, forward and backward?",
    "waiting": "How long does a step do nothing?",
    "call_stack": "Which call stack leads to an operator?",
    "timeline": "Is there a timeline of every operator?",
    "flops": "How many FLOPs has a step?",
    "layer_flops": "How many FLOPs has each layer?",
    "window_energy": "How many joules do some steps take?",
    "layer_energy": "How many joules does each layer take?",
}
ON_A_GPU = ("outside", "out_of_memory", "window_energy", "layer_energy")
OTHER_PROGRAMS = {"leak": "leak", "out_of_memory": "crash", "rank": "ranks", "compiled": "compiled"}
"""Questions that are asked of another program than ``planted``."""
FILE = "peer_programs.py"
ITS_LINE = f"{FILE}:{line_of('line')}"
LEAK_LINE = f"{FILE}:{line_of('leak')}"
GIB_24 = 24 << 30


@dataclass(frozen=True)
class Asked:
    """One output of a tool, and the truth."""

    out: Path
    device: str
    facts: dict[str, float]

    @property
    def kind(self) -> int:
        """Torch's number of the device."""
        return 1 if self.device == "cuda" else 0

    def read(self, name: str) -> Any:
        """Return a JSON file of the output."""
        return json.loads((self.out / name).read_text(encoding="utf-8"))

    @property
    def trace(self) -> Path:
        """The profiler's trace."""
        return self.out / "trace.json"

    @property
    def pickle(self) -> Path:
        """The allocator's snapshot."""
        return self.out / "snapshot.pickle"

    def is_peak(self, value: float | None) -> Answer:
        """Return whether a figure is the peak: the allocator's, or within bounds where it has no counter."""
        if self.facts.get("peak_bytes"):
            return near(value, self.facts["peak_bytes"], 0.01)
        return between(value, self.facts["peak_least_bytes"], self.facts["peak_most_bytes"])


def is_layer(label: str) -> bool:
    """Return whether a row is the planted layer: by its path, or by its class."""
    return PLANTED_LAYER in label.lower().split(":")[-1]


def within(peak: float | None, beside: bool = False) -> Answer:
    """Return whether the program fits, in part where only tensors are counted."""
    if not peak:
        return NOTHING
    return Answer(YES if beside else PART, str(peak <= GIB_24))


def categories(asked: Asked, weights: float, state: float, total: float | None, parts: float) -> Answer:
    """Return how many of three facts hold: weights, optimizer state, and that the categories sum to the peak."""
    facts = asked.facts
    good = [
        abs(weights - facts["weight_bytes"]) <= 0.01 * facts["weight_bytes"],
        abs(state - facts["optimizer_state_bytes"]) <= 0.01 * facts["optimizer_state_bytes"],
        total is not None and abs(parts - total) <= 0.01 * total,
    ]
    return counted(sum(good), 3, f"{weights:,.0f} and {state:,.0f}")


# torch.profiler: a trace, tables, and a memory timeline


def profiler_layer(asked: Asked) -> Answer:
    """Modules around the allocations that are live at the peak, found in the trace by a script: part at most."""
    rows = summed(live_by(asked.trace, asked.kind, lambda name: name.startswith("nn.Module")))
    return least(ranked(rows, peak_of(asked.trace, asked.kind), is_layer), PART)


def profiler_category(asked: Asked) -> Answer:
    """The memory timeline at its largest sum."""
    if not (asked.out / "timeline.json").exists():
        return NOTHING
    _, sizes = asked.read("timeline.json")
    row = max(sizes, key=sum)
    return categories(asked, row[1], row[2], peak_of(asked.trace, asked.kind), sum(row))


def _function(label: str) -> str:
    return re.sub(r".*?(\w+\.py)\((\d+)\): .*", r"\1:\2", label)


def profiler_line(asked: Asked, *, at_end: bool = False) -> Answer:
    """Functions of the program around allocations; a trace has the line at which a function begins."""
    blocks = live_by(asked.trace, asked.kind, lambda name: f"{FILE}(" in name, at_end=at_end)
    if at_end:
        label, count = most_frequent(label for size, label in blocks if size == LEAK_BYTES)
        return Answer(PART if count == WINDOW and FILE in label else NO, f"{label}: {count} blocks")
    exact = ranked(summed((size, _function(label)) for size, label in blocks), None, lambda label: label == ITS_LINE)
    inside = ranked(summed(blocks), None, lambda label: label.endswith(": forward"))
    return exact if exact.grade != NO else least(inside, PART)


def profiler_rank(asked: Asked) -> Answer:
    """The peaks of two traces."""
    return by_rank([peak_of(asked.out / f"rank-{rank}" / "trace.json", asked.kind) for rank in range(2)])


def by_rank(peaks: list[float | None]) -> Answer:
    """Return whether the second process has the higher peak."""
    first, second = [peak or 0 for peak in peaks]
    return Answer(YES if second > first > 0 else NO, f"{first:,.0f} and {second:,.0f}")


def profiler_layer_time(asked: Asked) -> Answer:
    """Time inside the modules' own Python events."""
    spans = [one for one in trace_events(asked.trace) if one["name"].startswith("nn.Module")]
    rows = summed((one["dur"] / 1e3 / WINDOW, one["name"]) for one in spans if "Planted_" not in one["name"])
    return ranked(rows, asked.facts["work_ms"], is_layer, 0.25)


def profiler_waiting(asked: Asked) -> Answer:
    """The program's sleep, which is a Python event."""
    slept = [one["dur"] / 1e3 for one in trace_events(asked.trace) if "built-in function sleep" in one["name"]]
    return near(statistics.median(slept) if slept else None, asked.facts["sleep_ms"], 0.3)


def profiler_call_stack(asked: Asked) -> Answer:
    """Python events around an operator."""
    events = trace_events(asked.trace)
    one = next((event for event in events if event["name"] == "aten::gelu"), None)
    if one is None:
        return NOTHING
    around = [
        event["name"]
        for event in events
        if event.get("cat") == "python_function" and event["ts"] <= one["ts"] <= event["ts"] + event["dur"]
    ]
    found = [bool([name for name in around if name.endswith(word)]) for word in (": forward", ": take_step", ": main")]
    return counted(sum(found), 3)


def operators_in(events: list[Event]) -> Answer:
    """Return yes where the forward's products of every step are there."""
    hits = sum("addmm" in event.get("name", "") for event in events if event.get("ph") == "X")
    steps = hits // 3
    return Answer(YES if steps >= WINDOW else PART if steps else NO, f"{steps} of {WINDOW} steps")


# the allocator's history and its snapshot


def snapshot_line(asked: Asked, *, at_end: bool = False) -> Answer:
    """Frames of the blocks at the peak, or of those that are left."""
    peak, blocks = snapshot_blocks(asked.pickle, at_peak=not at_end)
    lines = [(one["size"], frame_line(one.get("frames", ()), FILE)) for one in blocks]
    if at_end:
        label, count = most_frequent(label for size, label in lines if size == LEAK_BYTES)
        return Answer(YES if label == LEAK_LINE and count == WINDOW else NO, f"{label}: {count} blocks")
    return ranked(summed(lines), peak, lambda label: label == ITS_LINE)


def snapshot_layer(asked: Asked) -> Answer:
    """Frames name functions, and no layers."""
    peak, blocks = snapshot_blocks(asked.pickle, at_peak=True)
    named = ((one["size"], one["frames"][0]["name"] if one.get("frames") else "(none)") for one in blocks)
    return ranked(summed(named), peak, is_layer)


def snapshot_allocations(asked: Asked) -> Answer:
    """Both events of one large block."""
    size = asked.facts["rows"] * WIDE * 4
    actions = {
        one["action"] for trace in snapshot_of(asked.pickle)["device_traces"] for one in trace if one["size"] == size
    }
    return counted(len(actions & {"alloc", "free_completed"}), 2)


def snapshot_failure(asked: Asked) -> Answer:
    """Blocks of the planted leak are the most, by line."""
    _, blocks = snapshot_blocks(asked.pickle, at_peak=True)
    rows = summed((one["size"], frame_line(one.get("frames", ()), FILE)) for one in blocks)
    return ranked(rows, sum(rows.values()), lambda label: label == LEAK_LINE)


# MemTracker


def tracker_peak(asked: Asked) -> dict[str, float]:
    """Return bytes by category."""
    found: dict[str, float] = asked.read("figures.json")["peak"].get("cuda:0" if asked.kind else "cpu", {})
    return found


def tracker_layer(asked: Asked) -> Answer:
    """Parameters, inputs and outputs of modules, those that contain others left out."""
    rows = {name: size for name, size in asked.read("figures.json")["modules"].items() if name.count(".")}
    return ranked(rows, tracker_peak(asked).get("Total"), lambda label: f".{PLANTED_LAYER}" in label)


def tracker_category(asked: Asked) -> Answer:
    """The peak's categories."""
    peak = tracker_peak(asked)
    total = peak.pop("Total", None)
    return categories(asked, peak.get("Parameter", 0), peak.get("Optstate", 0), total, sum(peak.values()))


def tracker_rank(asked: Asked) -> Answer:
    """The peaks of two outputs."""
    each = [Asked(asked.out / f"rank-{rank}", asked.device, asked.facts) for rank in range(2)]
    return by_rank([tracker_peak(one).get("Total") for one in each])


# FlopCounterMode and Zeus


def counter_flops(asked: Asked) -> Answer:
    """The count of all modules."""
    return near(asked.read("flops.json").get("Global", 0) / WINDOW, asked.facts["flops"], 0.01)


def counter_layer(asked: Asked) -> Answer:
    """The count of the planted layer."""
    return near(asked.read("flops.json").get(f"Planted.{PLANTED_LAYER}", 0) / WINDOW, asked.facts["wide_flops"], 0.01)


def zeus_energy(asked: Asked) -> Answer:
    """The joules of the window."""
    joules = asked.read("energy.json")["j"]
    return Answer(YES if joules > 0 else NO, f"{joules:.1f}")


# gpuledger


def run_rows(asked: Asked, key: str) -> dict[str, float]:
    """Return bytes at the peak by ``module``, ``category`` or ``line``."""
    found = shown(asked.out, "--by", key).get("breakdown", ())
    return summed((one["bytes"], one.get(key) or "(none)") for one in found)


def run_layer(asked: Asked) -> Answer:
    """Bytes by module, the parts of a module with it."""
    rows = run_rows(asked, "module")
    return ranked(rows, shown(asked.out).get("peak_allocated_bytes"), lambda label: label.startswith(PLANTED_LAYER))


def run_category(asked: Asked) -> Answer:
    """Bytes by category."""
    rows = run_rows(asked, "category")
    peak = shown(asked.out).get("peak_allocated_bytes")
    return categories(asked, rows.get("weight", 0), rows.get("optimizer_state", 0), peak, sum(rows.values()))


def run_line(asked: Asked) -> Answer:
    """Bytes by line."""
    rows = {label.split(" ")[0]: size for label, size in run_rows(asked, "line").items()}
    return ranked(rows, shown(asked.out).get("peak_allocated_bytes"), lambda label: label == ITS_LINE)


def run_outside(asked: Asked) -> Answer:
    """The lines of the balance against what the driver says is in use."""
    text = ledger("balance", str(asked.out), "--json")
    numbers = [int(found) for found in re.findall(r'"bytes": (\d+)', text)]
    used = asked.facts["used_bytes"]
    return counted(
        sum(any(abs(one - used) <= 0.02 * used for one in numbers) for _ in range(1)), 1, f"{len(numbers)} lines"
    )


def run_fits(asked: Asked) -> Answer:
    """The line of ``--fit``."""
    found = re.search(r"^Fits +(yes|no).*", ledger("show", str(asked.out), "--fit", "24GiB"), re.MULTILINE)
    return Answer(YES if asked.kind else PART, found[0]) if found and found[1] == "yes" else NOTHING


def run_leak(asked: Asked) -> Answer:
    """The sentence on growth: the line, and bytes a step."""
    told = json.dumps(shown(asked.out).get("growth", [])) + ledger("check", str(asked.out), "--no-growth")
    return counted((LEAK_LINE in told) + ("2.0 MiB" in told or str(LEAK_BYTES) in told), 2, told[:160])


def run_failure(asked: Asked) -> Answer:
    """The first cause that the page of the failure names."""
    told = json.dumps(shown(asked.out).get("out_of_memory", []))
    return counted((LEAK_LINE in told) + ("grow" in told), 2, told[:160])


def run_later(asked: Asked) -> Answer:
    """The counters of every step: the allocator's, or the process's where that has none."""
    rows = table_rows(asked.out, "step_memory")
    key = "peak_allocated_bytes" if asked.kind else "host_bytes"
    sizes = {int(row["step"]): int(row[key]) for row in rows if row.get(key)}
    if SPIKE_STEP not in sizes or SPIKE_STEP - 1 not in sizes:
        return NOTHING
    return near(sizes[SPIKE_STEP] - sizes[SPIKE_STEP - 1], SPIKE_BYTES, 0.25)


def run_allocations(asked: Asked) -> Answer:
    """Both times of one large block."""
    size = str(int(asked.facts["rows"]) * WIDE * 4)
    blocks = [row for row in table_rows(asked.out, "blocks") if row["requested_bytes"] == size]
    return counted(any(row["alloc_ns"] for row in blocks) + any(row["free_ns"] for row in blocks), 2)


def run_rank(asked: Asked) -> Answer:
    """The peaks of both ranks."""
    return by_rank([shown(asked.out, "--rank", str(rank)).get("peak_allocated_bytes") for rank in range(2)])


def run_time(asked: Asked, key: str = "time_ns", total: float | None = None) -> Answer:
    """Time or joules by module, forward and backward."""
    found = (shown(asked.out).get("time") or {}).get("breakdown", ())
    unit = 1e6 if key == "time_ns" else 1
    rows = summed(((one.get(key) or 0) / unit, one["module"] or "(none)") for one in found)
    wanted = asked.facts["work_ms"] if key == "time_ns" else total
    return ranked(rows, wanted, lambda label: label.startswith(PLANTED_LAYER), 0.25)


def run_layer_energy(asked: Asked) -> Answer:
    """Joules by module against those of the step."""
    energy = shown(asked.out).get("energy") or {}
    rows = summed((one.get("energy_j") or 0, one["module"] or "(none)") for one in energy.get("breakdown", ()))
    return ranked(rows, sum(rows.values()) or None, lambda label: label.startswith(PLANTED_LAYER))


def run_waiting(asked: Asked) -> Answer:
    """Idle time of a step: the GPU's, or what is outside of operators."""
    told = shown(asked.out).get("time") or {}
    idle = told.get("idle_ns") if asked.kind else told.get("step_ns", 0) - told.get("work_ns", 0)
    return near(None if idle is None else idle / 1e6, asked.facts["sleep_ms"], 0.3)


def run_call_stack(asked: Asked) -> Answer:
    """Lines that have time: one for each operator, and not those around it."""
    lines = {str(one["line"]).split(" ")[0] for one in (shown(asked.out).get("time") or {}).get("lines", ())}
    return least(counted(ITS_LINE in lines, 1, ITS_LINE if ITS_LINE in lines else ""), PART)


def run_timeline(asked: Asked) -> Answer:
    """Operators of the trace."""
    place = asked.out.with_suffix(".trace.json")
    ledger("trace", str(asked.out), "--force", "-o", str(place))
    return operators_in(trace_events(place))


def run_energy(asked: Asked) -> Answer:
    """Joules of a step."""
    joules = (shown(asked.out).get("energy") or {}).get("step_j")
    return Answer(YES if joules else NO, f"{joules}")


def profiler_allocations(asked: Asked) -> Answer:
    """Both events of one large block."""
    size = asked.facts["rows"] * WIDE * 4
    found = {event["args"]["Bytes"] for event in memory_events(asked.trace, asked.kind)}
    return counted((size in found) + (-size in found), 2)


Asking = Callable[[Asked], Answer]
ANSWERS: dict[str, dict[str, Asking]] = {
    "profiler": {
        "peak": lambda asked: asked.is_peak(peak_of(asked.trace, asked.kind)),
        "layer": profiler_layer,
        "category": profiler_category,
        "line": profiler_line,
        "fits": lambda asked: within(peak_of(asked.trace, asked.kind)),
        "leak": lambda asked: profiler_line(asked, at_end=True),
        "allocations": profiler_allocations,
        "rank": profiler_rank,
        "compiled": profiler_layer,
        "layer_time": profiler_layer_time,
        "waiting": profiler_waiting,
        "call_stack": profiler_call_stack,
        "timeline": lambda asked: operators_in(trace_events(asked.trace)),
        "flops": lambda asked: near(sum(asked.read("flops.json").values()) / WINDOW, asked.facts["flops"], 0.01),
    },
    "snapshot": {
        "peak": lambda asked: asked.is_peak(snapshot_blocks(asked.pickle, at_peak=True)[0]),
        "layer": snapshot_layer,
        "line": snapshot_line,
        "fits": lambda asked: within(snapshot_blocks(asked.pickle, at_peak=True)[0]),
        "out_of_memory": snapshot_failure,
        "leak": lambda asked: snapshot_line(asked, at_end=True),
        "allocations": snapshot_allocations,
        "rank": lambda asked: by_rank(
            [snapshot_blocks(asked.out / f"rank-{rank}" / "snapshot.pickle", at_peak=True)[0] for rank in range(2)]
        ),
        "compiled": snapshot_layer,
    },
    "mem_tracker": {
        "peak": lambda asked: asked.is_peak(tracker_peak(asked).get("Total")),
        "layer": tracker_layer,
        "category": tracker_category,
        "fits": lambda asked: within(tracker_peak(asked).get("Total")),
        "rank": tracker_rank,
        "compiled": tracker_layer,
    },
    "zeus": {"window_energy": zeus_energy},
    "flop_counter": {"flops": counter_flops, "layer_flops": counter_layer},
    "gpuledger": {
        "peak": lambda asked: asked.is_peak(shown(asked.out).get("peak_allocated_bytes")),
        "layer": run_layer,
        "category": run_category,
        "line": run_line,
        "outside": run_outside,
        "fits": run_fits,
        "out_of_memory": run_failure,
        "leak": run_leak,
        "later_step": run_later,
        "allocations": run_allocations,
        "rank": run_rank,
        "compiled": run_layer,
        "layer_time": run_time,
        "waiting": run_waiting,
        "call_stack": run_call_stack,
        "timeline": run_timeline,
        "window_energy": run_energy,
        "layer_energy": run_layer_energy,
    },
}


def answer(tool: str, question: str, asked: Asked | None, device: str) -> Answer:
    """Return what a tool's output answers; ``asked`` is None where the tool could not be used."""
    if asked is None or (question in ON_A_GPU and device != "cuda"):
        return Answer(ABSENT)
    asking = ANSWERS[tool].get(question)
    try:
        return asking(asked) if asking else NOTHING
    except (OSError, KeyError, ValueError, IndexError) as error:
        return Answer(NO, f"{type(error).__name__}: {error}"[:160])
