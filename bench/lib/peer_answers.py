"""Twenty questions, the rule for each, and for each tool the function that takes a value out of what it wrote.

A question without a function for a tool is one for which the tool has no output. A function returns a value, and
never knows the truth: peer_grades.py compares with it, by the same rule for every tool.
"""

from __future__ import annotations

import ast
import csv
import json
import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer_grades import MISSING, UNASKED, UNGRADED, Answer, Rule, Value, grade
from peer_outputs import (
    first_of_the_largest,
    frame_line,
    idle_ms,
    kernels_within,
    ledger,
    live_by,
    memory_events,
    most_frequent,
    peak_of,
    shown,
    snapshot_blocks,
    snapshot_of,
    sql_value,
    summed,
    table_rows,
    trace_events,
)
from peer_programs import LEAK_BYTES, PLANTED_LAYER, SPIKE_STEP, WINDOW, line_of

OF_THE_PROCESS = ("used_bytes", "outside_bytes")
"""Truths that each watched process tells of itself, because a tool's own memory is among them."""
FILE = "peer_programs.py"
ITS_LINE = f"{FILE}:{line_of('line')}"
LEAK_LINE = f"{FILE}:{line_of('leak')}"
MIB = 1 << 20


def function_of(mark: str) -> str:
    """Return the line at which the function around the comment ``planted: MARK`` begins."""
    number, source = line_of(mark), Path(__file__).with_name(FILE).read_text(encoding="utf-8")
    functions = [one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.FunctionDef)]
    begins = max(one.lineno for one in functions if one.lineno <= number <= (one.end_lineno or 0))
    return f"{FILE}:{begins}"


ITS_FUNCTION, LEAK_FUNCTION = function_of("line"), function_of("leak")
PLANTED_LINES = [ITS_FUNCTION, ITS_LINE, LEAK_FUNCTION, LEAK_LINE]


def is_layer(label: str) -> bool:
    """Return whether a row is the planted layer: by its path, or by its class."""
    return PLANTED_LAYER in label.lower().split(":")[-1]


QUESTIONS: dict[str, tuple[str, Rule]] = {
    "peak": (
        "How many bytes are allocated at the peak?",
        Rule(("peak_bytes",), 0.01, bounds=("peak_least_bytes", "peak_most_bytes"), left_out="workspace_bytes"),
    ),
    "in_use": ("How many bytes of the GPU are in use?", Rule(("used_bytes",), 0.05)),
    "outside": ("How many of them are not the allocator's?", Rule(("outside_bytes",), 0.05)),
    "category": (
        "How many bytes of weights and of optimizer state?",
        Rule(("weight_bytes", "optimizer_state_bytes"), 0.01),
    ),
    "layer": ("Which layer holds most bytes at the peak?", Rule(label=is_layer)),
    "line": (
        "Which source line made most activations at the peak?",
        Rule(label=lambda text: text == ITS_LINE, nearly=lambda text: text == ITS_FUNCTION),
    ),
    "compiled": ("Which layer holds most, with torch.compile?", Rule(label=is_layer)),
    "leak": (
        "Which line keeps memory in every step?",
        Rule(label=lambda text: text == LEAK_LINE, nearly=lambda text: text == LEAK_FUNCTION),
    ),
    "out_of_memory": (
        "Which line held most when memory ran out?",
        Rule(label=lambda text: text == LEAK_LINE, nearly=lambda text: text == LEAK_FUNCTION),
    ),
    "later_step": ("How many bytes more did one later step take?", Rule(("spike_bytes",), 0.05)),
    "stack": (
        "Which functions called the largest allocation?",
        Rule(label=lambda text: {"forward", "take_step", "main"} <= set(text.split())),
    ),
    "layer_time": ("How many ms does one layer's forward take?", Rule(("wide_forward_ms",), 0.3)),
    "waiting": ("How many ms of a step more is nothing computed because of a sleep?", Rule(("sleep_ms",), 0.2)),
    "timeline": ("In which order do the operators of a step run?", Rule(label=lambda text: text == "gelu mean square")),
    "flops": ("How many FLOPs has a step?", Rule(("flops",), 0.01)),
    "layer_flops": ("How many FLOPs has one layer?", Rule(("wide_flops",), 0.01)),
    "operator_flops": ("How many FLOPs has one operator, addmm?", Rule(("addmm_flops",), 0.01)),
    "occupancy": ("What is the occupancy of the GPU by kernel?", Rule()),
    "step_energy": ("How much energy does a step take, in J?", Rule(("step_energy_j",), 0.1)),
    "layer_energy": ("How much energy does one layer take, in J?", Rule()),
}
ON_A_GPU = ("in_use", "outside", "out_of_memory", "occupancy", "step_energy", "layer_energy")
OTHER_PROGRAMS = {
    "leak": "leak",
    "out_of_memory": "crash",
    "compiled": "compiled",
    "later_step": "spike",
    "step_energy": "long",
    "layer_energy": "long",
}
"""Questions that are asked of another program than ``planted``."""
COMPARED_PROGRAMS = {"waiting": "awake"}
"""Questions of a difference between two programs: the other one."""
NOTES = {
    "mem_tracker, peak": "counts tensors; the truth has the workspaces of cuBLAS, too",
    "profiler, line": "a trace has the line at which a function begins",
    "profiler, leak": "a trace has the line at which a function begins; read among blocks of the planted size",
    "snapshot, leak": "read among blocks of the planted size",
    "gpuledger, line": "rows of the category activation; blocks of the backward have the line that calls the module",
    "profiler, waiting": "gaps between the trace's kernels and copies",
}
"""What is to be known of an answer: definitions that differ, and how it is read."""
NOT_GRADED = {
    "later_step": "the script closes every other tool before that step",
    "stack": "several allocations of a step have the largest size, and the tools name different ones",
}
"""Questions for which no answer is graded, and why."""
NOT_ASKED = {
    "profiler, out_of_memory": "the script exports no trace after an error",
    "profiler, layer_flops": "the script does not sum the FLOPs of its operators by module",
    "zeus, layer_time": "the script measures no window around a layer",
    "zeus, layer_energy": "the script measures no window around a layer",
}
"""What a tool could tell if the script read it or ran it otherwise; this is not the same as missing."""


@dataclass(frozen=True)
class Asked:
    """One output of a tool, the truth, and what the watched program told of itself."""

    out: Path
    device: str
    facts: dict[str, float]
    told: dict[str, Any]
    compared: Path | None = None
    """The tool's output of the other program, where a question asks of a difference."""

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


def largest(rows: dict[str, float]) -> str | None:
    """Return the label of the largest row that has one."""
    named = {label: size for label, size in rows.items() if label != "(none)"}
    return max(named, key=lambda label: named[label]) if named else None


def order_of(names: Iterable[str]) -> str:
    """Return three operators in the order in which they first run; a square is launched by its inner operator pow."""
    wanted = {"gelu": "gelu", "mean": "mean", "square": "square", "pow": "square"}
    found = [wanted.get(name.removeprefix("aten::")) for name in names]
    return " ".join(dict.fromkeys(name for name in found if name))


def more_than(value: float | None, without: float | None) -> Value:
    """Return by how much a value is larger than that of the compared program."""
    return None if value is None or without is None else value - without


# torch.profiler: a trace, tables, and a memory timeline


def profiler_layer(asked: Asked) -> Value:
    """Modules around the allocations that are live at the peak, with the modules around those: a trace has no paths."""
    label = largest(summed(live_by(asked.trace, asked.kind, lambda name: name.startswith("nn.Module"))))
    modules = [one for one in trace_events(asked.trace) if one["name"].startswith("nn.Module")]
    inner = next((one for one in modules if one["name"] == label), None)
    if inner is None:
        return None
    around = [
        one for one in modules if one["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= one["ts"] + one["dur"]
    ]
    return ".".join(one["name"].removeprefix("nn.Module: ") for one in around)


def profiler_category(asked: Asked) -> Value:
    """The memory timeline at its largest sum."""
    if not (asked.out / "timeline.json").exists():
        return None
    _, sizes = asked.read("timeline.json")
    row = max(sizes, key=sum)
    return float(row[1]), float(row[2])


def _function(label: str) -> str:
    return re.sub(r".*?(\w+\.py)\((\d+)\): .*", r"\1:\2", label)


def profiler_line(asked: Asked, *, at_end: bool = False) -> Value:
    """Functions of the program around allocations; a trace has the line at which a function begins."""
    blocks = live_by(asked.trace, asked.kind, lambda name: f"{FILE}(" in name, at_end=at_end)
    if at_end:
        return _function(most_frequent(label for size, label in blocks if size == LEAK_BYTES)[0])
    return largest(summed((size, _function(label)) for size, label in blocks))


def spans_around(asked: Asked, moment: dict[str, Any]) -> list[str]:
    """Return the names of Python functions around an event."""
    return [
        str(event["name"]).rpartition(": ")[2]
        for event in trace_events(asked.trace)
        if event.get("cat") == "python_function" and event["ts"] <= moment["ts"] <= event["ts"] + event["dur"]
    ]


def profiler_stack(asked: Asked) -> Value:
    """Python events around the largest allocation."""
    blocks = memory_events(asked.trace, asked.kind)
    one = first_of_the_largest(blocks, lambda event: event["args"]["Bytes"])
    return " ".join(spans_around(asked, one)) if one else None


def profiler_layer_time(asked: Asked) -> Value:
    """The layer's Python events; on a GPU, the kernels that are launched inside them."""
    events = trace_events(asked.trace)
    spans = [one for one in events if one["name"].startswith("nn.Module: Wide_")][1:]
    if asked.kind:
        return statistics.median([kernels_within(asked.trace, span) for span in spans]) / 1e3 if spans else None
    return statistics.median([one["dur"] for one in spans]) / 1e3 if spans else None


def profiler_waiting(asked: Asked) -> Value:
    """Gaps between the trace's work, against those of the other program."""
    without = asked.compared and idle_ms(asked.compared / "trace.json", asked.kind)
    return more_than(idle_ms(asked.trace, asked.kind), without or None)


def profiler_flops(asked: Asked) -> Value:
    """The sum over the operators."""
    return float(sum(asked.read("flops.json").values())) / WINDOW


def profiler_occupancy(asked: Asked) -> Value:
    """The largest estimate of a kernel, in %."""
    return max(
        (
            one["args"].get("est. achieved occupancy %", 0.0)
            for one in trace_events(asked.trace)
            if one.get("cat") == "kernel"
        ),
        default=None,
    )


# the allocator's history and its snapshot


def snapshot_line(asked: Asked, *, at_end: bool = False) -> Value:
    """Frames of the blocks at the peak, or of those that are left."""
    _, blocks = snapshot_blocks(asked.pickle, at_peak=not at_end)
    lines = [(one["size"], frame_line(one.get("frames", ()), FILE)) for one in blocks]
    if at_end:
        return most_frequent(label for size, label in lines if size == LEAK_BYTES)[0]
    return largest(summed(lines))


def stack_in(place: Path) -> Value:
    """Return the functions that called the largest allocation of a snapshot."""
    events = [one for trace in snapshot_of(place)["device_traces"] for one in trace if one["action"] == "alloc"]
    one = first_of_the_largest(events, lambda event: event["size"])
    return " ".join(frame["name"] for frame in one.get("frames", ())) if one else None


# MemTracker


def tracker_peak(asked: Asked) -> dict[str, float]:
    """Return bytes by category."""
    found: dict[str, float] = asked.read("figures.json")["peak"].get("cuda:0" if asked.kind else "cpu", {})
    return found


def tracker_layer(asked: Asked) -> Value:
    """Parameters, inputs and outputs of modules, the whole model left out."""
    return largest({name: size for name, size in asked.read("figures.json")["modules"].items() if "." in name})


def tracker_category(asked: Asked) -> Value:
    """The peak's categories."""
    peak = tracker_peak(asked)
    return (peak["Parameter"], peak["Optstate"]) if {"Parameter", "Optstate"} <= set(peak) else None


# FlopCounterMode, Zeus and nvidia-smi


def counter_flops(asked: Asked, module: str, operator: str = "") -> Value:
    """The count of one module, of one operator or of all."""
    counts = asked.read("flops.json").get(module, {})
    count = sum(int(size) for name, size in counts.items() if name.endswith(operator))
    return float(count / WINDOW) or None


def zeus_energy(asked: Asked) -> Value:
    """The joules of the window by its steps."""
    return float(asked.read("energy.json")["j"]) / int(asked.told["steps_inside"])


def polled(asked: Asked) -> list[tuple[float, float]]:
    """Return MiB in use and watts of each sample."""
    rows = csv.reader((asked.out / "smi.csv").read_text(encoding="utf-8").splitlines())
    return [(float(row[0]), float(row[1])) for row in rows if len(row) == 2]


def polled_bytes(asked: Asked) -> Value:
    """The most in use."""
    return max((used for used, _ in polled(asked)), default=0.0) * MIB or None


def polled_energy(asked: Asked) -> Value:
    """Mean power of the second half of the samples, and the median of the steps' own times."""
    watts = [power for _, power in polled(asked)]
    step_ms: float = statistics.median(asked.told["step_ms"])
    return statistics.fmean(watts[len(watts) // 2 :]) * step_ms / 1e3


# gpuledger


def run_rows(asked: Asked, key: str, *words: str, category: str = "") -> dict[str, float]:
    """Return bytes by ``module``, ``category`` or ``line``, of all categories or of one."""
    found = shown(asked.out, "--by", key, *words).get("breakdown", ())
    return summed((one["bytes"], one.get(key) or "(none)") for one in found if category in ("", one["category"]))


def run_category(asked: Asked) -> Value:
    """Bytes by category."""
    rows = run_rows(asked, "category")
    return (rows["weight"], rows["optimizer_state"]) if {"weight", "optimizer_state"} <= set(rows) else None


def run_lines(asked: Asked, *words: str, category: str = "") -> dict[str, float]:
    """Return bytes by line."""
    rows = run_rows(asked, "line", *words, category=category)
    return summed((size, label.split(" ")[0]) for label, size in rows.items())


def run_balance(asked: Asked, *, outside: bool) -> Value:
    """Bytes in use, or those of its lines that are not the allocator's."""
    text = ledger("balance", str(asked.out), "--json")
    found = json.loads(text) if text.startswith("{") else {}
    used = found.get("used_bytes")
    reserved = shown(asked.out).get("reserved_bytes")
    if not used or not reserved:
        return None
    return float(used - reserved if outside else used)


def run_leak(asked: Asked) -> Value:
    """The line that the run says grows; else the one with most more at the end of step 3 than of step 2."""
    growth = json.dumps(shown(asked.out).get("growth", []))
    named = re.search(rf"{re.escape(FILE)}:\d+", growth)
    if named:
        return str(named[0])
    before, after = (run_lines(asked, "--at", "end", "--step", step) for step in ("2", "3"))
    return largest({label: size - before.get(label, 0) for label, size in after.items()})


def run_failure(asked: Asked) -> Value:
    """The line whose memory had grown most when memory ran out; without growth, the line of the failed request."""
    told = shown(asked.out)
    failures, growth = told.get("out_of_memory") or [], told.get("growth") or []
    if not failures:
        return None
    grown = [one for one in growth if one["device_idx"] == failures[0]["device_idx"] and one["line"]]
    most = max(grown, key=lambda one: float(one["grown_bytes"]), default=failures[0])
    named = re.search(rf"{re.escape(FILE)}:\d+", most["line"] or "")
    return str(named[0]) if named else None


def run_later(asked: Asked) -> Value:
    """The counters of every step: the allocator's, or the process's where that has none."""
    rows = table_rows(asked.out, "step_memory")
    key = "peak_allocated_bytes" if asked.kind else "host_bytes"
    sizes = {int(row["step"]): int(row[key]) for row in rows if row.get(key)}
    if SPIKE_STEP not in sizes or SPIKE_STEP - 1 not in sizes:
        return None
    return float(sizes[SPIKE_STEP] - sizes[SPIKE_STEP - 1])


def run_stack(asked: Asked) -> Value:
    """The exported snapshot's frames."""
    place = asked.out.with_suffix(".pickle")
    ledger("export", str(asked.out), "--to", "torch-snapshot", "-o", str(place))
    return stack_in(place)


def run_layer_time(asked: Asked) -> Value:
    """Time of the layer and its parts, forward."""
    found = (shown(asked.out, "--by", "module").get("time") or {}).get("breakdown", ())
    rows = [one for one in found if (one["module"] or "").startswith(PLANTED_LAYER) and one["phase"] == "forward"]
    return sum(one["time_ns"] for one in rows) / 1e6 or None


def run_idle_ms(run: Path, kind: int) -> float | None:
    """Return the idle time of a step: the GPU's, or what is outside of operators."""
    told = shown(run).get("time") or {}
    idle = told.get("idle_ns") if kind else told.get("step_ns", 0) - told.get("work_ns", 0)
    return idle / 1e6 if idle else None


def run_waiting(asked: Asked) -> Value:
    """Idle time of a step, against that of the other program."""
    without = run_idle_ms(asked.compared, asked.kind) if asked.compared else None
    return more_than(run_idle_ms(asked.out, asked.kind), without)


def run_flops(asked: Asked, condition: str = "true") -> Value:
    """FLOPs of a profiled step: the sum over its kernels in the table spans."""
    return sql_value(
        asked.out,
        "select sum(s.flops) / count(distinct s.step) from spans s left join modules m on m.module_id = s.module_id "
        f"left join names o on o.name_id = s.operator_id where s.flops is not null and {condition}",
    )


def run_timeline(asked: Asked) -> Value:
    """Operators of the exported timeline; on a GPU, those that launched its kernels."""
    place = asked.out.with_suffix(".trace.json")
    ledger("trace", str(asked.out), "--force", "-o", str(place))
    spans = [event for event in trace_events(place) if event.get("ph") == "X"]
    return order_of(event.get("args", {}).get("operator") or event["name"] for event in spans)


def run_energy(asked: Asked) -> Value:
    """Joules of a step."""
    joules = (shown(asked.out).get("energy") or {}).get("step_energy_j")
    return float(joules) if joules else None


def run_layer_energy(asked: Asked) -> Value:
    """Joules of the layer and its parts."""
    found = (shown(asked.out, "--by", "module").get("energy") or {}).get("breakdown", ())
    return sum(one.get("energy_j") or 0 for one in found if (one["module"] or "").startswith(PLANTED_LAYER)) or None


Asking = Callable[[Asked], Value]
ANSWERS: dict[str, dict[str, Asking]] = {
    "profiler": {
        "peak": lambda asked: peak_of(asked.trace, asked.kind),
        "layer": profiler_layer,
        "category": profiler_category,
        "line": profiler_line,
        "leak": lambda asked: profiler_line(asked, at_end=True),
        "compiled": profiler_layer,
        "stack": profiler_stack,
        "layer_time": profiler_layer_time,
        "waiting": profiler_waiting,
        "timeline": lambda asked: order_of(one["name"] for one in trace_events(asked.trace) if one.get("ph") == "X"),
        "flops": profiler_flops,
        "operator_flops": lambda asked: asked.read("flops.json").get("aten::addmm", 0) / WINDOW or None,
        "occupancy": profiler_occupancy,
    },
    "snapshot": {
        "peak": lambda asked: snapshot_blocks(asked.pickle, at_peak=True)[0],
        "line": snapshot_line,
        "out_of_memory": snapshot_line,
        "leak": lambda asked: snapshot_line(asked, at_end=True),
        "stack": lambda asked: stack_in(asked.pickle),
    },
    "mem_tracker": {
        "peak": lambda asked: tracker_peak(asked).get("Total"),
        "layer": tracker_layer,
        "category": tracker_category,
        "compiled": tracker_layer,
    },
    "zeus": {"step_energy": zeus_energy},
    "flop_counter": {
        "flops": lambda asked: counter_flops(asked, "Global"),
        "layer_flops": lambda asked: counter_flops(asked, f"Planted.{PLANTED_LAYER}"),
        "operator_flops": lambda asked: counter_flops(asked, "Global", "addmm"),
    },
    "nvidia_smi": {"in_use": polled_bytes, "step_energy": polled_energy},
    "gpuledger": {
        "peak": lambda asked: shown(asked.out).get("peak_allocated_bytes"),
        "in_use": lambda asked: run_balance(asked, outside=False),
        "outside": lambda asked: run_balance(asked, outside=True),
        "category": run_category,
        "layer": lambda asked: largest(run_rows(asked, "module")),
        "line": lambda asked: largest(run_lines(asked, category="activation")),
        "compiled": lambda asked: largest(run_rows(asked, "module")),
        "leak": run_leak,
        "out_of_memory": run_failure,
        "later_step": run_later,
        "stack": run_stack,
        "layer_time": run_layer_time,
        "waiting": run_waiting,
        "timeline": run_timeline,
        "flops": run_flops,
        "layer_flops": lambda asked: run_flops(
            asked, f"(m.path = '{PLANTED_LAYER}' or m.path like '{PLANTED_LAYER}.%')"
        ),
        "operator_flops": lambda asked: run_flops(asked, "o.name = 'aten::addmm'"),
        "step_energy": run_energy,
        "layer_energy": run_layer_energy,
    },
}


def answer(tool: str, question: str, asked: Asked | None, device: str) -> Answer:
    """Return what a tool's output answers; ``asked`` is None where the tool could not be used."""
    asking = ANSWERS[tool].get(question)
    if asking is None:
        return without_reader(tool, question)
    if asked is None or (question in ON_A_GPU and device != "cuda"):
        return Answer(UNASKED)
    try:
        found = grade(asking(asked), QUESTIONS[question][1], asked.facts)
        return Answer(UNGRADED, found.value) if question in NOT_GRADED else found
    except (OSError, KeyError, ValueError, IndexError, TypeError, StopIteration) as error:
        return Answer("missing", f"{type(error).__name__}: {error}"[:160])


def without_reader(tool: str, question: str) -> Answer:
    """Return the grade where no function reads a tool's output: missing, or why nothing can be said."""
    if question in NOT_GRADED:
        return Answer(UNGRADED)
    return Answer(UNASKED if f"{tool}, {question}" in NOT_ASKED else MISSING)


def value_of(text: str, rule: Rule) -> Value:
    """Return the value that a file of results shows: a label, or figures."""
    if rule.label is not None or not text:
        return text
    figures = tuple(float(one.replace(",", "")) for one in text.split(", "))
    return figures if len(figures) > 1 else figures[0]


def grade_again(results: dict[str, Any]) -> None:
    """Grade the values of a file of results by the rules of now; a truth that each process told of itself is kept."""
    if results.setdefault("planted_lines", PLANTED_LINES) != PLANTED_LINES:
        raise SystemExit("the planted lines have moved since the tools were run: run them again")
    results["questions"] = {name: {"text": text, "truth": rule.truth} for name, (text, rule) in QUESTIONS.items()}
    results |= {"notes": NOTES, "not_graded": NOT_GRADED, "not_asked": NOT_ASKED}
    for question, (_, rule) in QUESTIONS.items():
        facts = results["facts"].get(OTHER_PROGRAMS.get(question, "planted"), results["facts"]["planted"])
        for tool, one in results["answers"][question].items():
            if question in NOT_GRADED:
                one["grade"] = UNGRADED
            elif question not in ANSWERS[tool]:
                one["grade"] = without_reader(tool, question).grade
            elif one["grade"] != UNASKED and not set(rule.facts) & set(OF_THE_PROCESS):
                one["grade"] = grade(value_of(one["value"], rule), rule, facts).grade
