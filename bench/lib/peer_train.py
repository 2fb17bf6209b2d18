"""One training under one tool, in a process of its own: used by bench/peers/side_by_side.py.

Each tool is used as its own documentation says, around the first steps, and writes its output into a directory. With
``--tool none`` the program knows of no tool: so it runs bare, and under ``gpuledger run``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from peer_programs import WINDOW, Program, build

UNAVAILABLE = 77
"""Exit status where a tool is not there: not installed, or not for this device."""


Between = Callable[[], None] | None
Begin = Callable[[Program], Between]
"""What a tool does with the built program; it returns what is to be called between two steps."""


class Unavailable(Exception):
    """A tool that cannot be used here."""


@contextlib.contextmanager
def none(_out: Path, _device: str) -> Iterator[Begin]:
    """Run without a tool."""
    yield lambda _program: None


@contextlib.contextmanager
def profiler(out: Path, device: str) -> Iterator[Begin]:
    """torch.profiler with memory, shapes, stacks, modules and FLOPs: trace, tables and memory timeline."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    options = {"profile_memory": True, "record_shapes": True, "with_stack": True, "with_modules": True}
    with profile(activities=activities, with_flops=True, **options) as watched:  # type: ignore[arg-type]
        yield lambda _program: None
    watched.export_chrome_trace(str(out / "trace.json"))
    averages = watched.key_averages(group_by_stack_n=5)
    (out / "averages.txt").write_text(averages.table(sort_by="self_cpu_memory_usage", row_limit=50))
    flops = {one.key: one.flops for one in watched.key_averages() if one.flops}
    (out / "flops.json").write_text(json.dumps(flops))
    with contextlib.suppress(Exception):  # the export is deprecated, and absent from later versions
        watched.export_memory_timeline(str(out / "timeline.json"), device=device)


@contextlib.contextmanager
def snapshot(out: Path, device: str) -> Iterator[Begin]:
    """The allocator's history with Python stacks, its snapshot, and the viewer's page of it."""
    if device != "cuda":
        raise Unavailable("the history is of the CUDA allocator")
    torch.cuda.memory._record_memory_history(max_entries=1_000_000)
    try:
        yield lambda _program: None
    finally:
        torch.cuda.memory._dump_snapshot(str(out / "snapshot.pickle"))
        torch.cuda.memory._record_memory_history(enabled=None)
    from torch.cuda._memory_viz import trace_plot

    (out / "viewer.html").write_text(trace_plot(torch.cuda.memory._snapshot()))


@contextlib.contextmanager
def mem_tracker(out: Path, _device: str) -> Iterator[Begin]:
    """MemTracker around the steps, with its own texts and the figures of its modules."""
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    stack = contextlib.ExitStack()

    def begin(program: Program) -> Between:
        tracker.track_external(program.model, program.optimizer)
        stack.enter_context(tracker)
        return tracker.reset_mod_stats

    with stack:
        yield begin
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            tracker.display_snapshot("peak")
            tracker.display_modulewise_snapshots(depth=4, units="MiB")
        peak = {
            str(where): {getattr(kind, "value", str(kind)): size for kind, size in kinds.items()}
            for where, kinds in tracker.get_tracker_snapshot("peak").items()
        }
        modules = {
            one.mod_fqn: one.parameter_mem + one.buffer_mem + one.input_mem + one.output_mem
            for one in tracker.memory_tracking.values()
        }
    (out / "shown.txt").write_text(text.getvalue())
    (out / "figures.json").write_text(json.dumps({"peak": peak, "modules": modules}))


@contextlib.contextmanager
def zeus(out: Path, device: str) -> Iterator[Begin]:
    """Zeus: one energy window around the steps."""
    try:
        from zeus.monitor import ZeusMonitor
    except ImportError:
        raise Unavailable("zeus is not installed") from None
    if device != "cuda":
        raise Unavailable("no GPU")
    monitor = ZeusMonitor(gpu_indices=[0])
    monitor.begin_window("steps")
    yield lambda _program: None
    measured = monitor.end_window("steps")
    (out / "energy.json").write_text(json.dumps({"s": measured.time, "j": measured.total_energy}))


@contextlib.contextmanager
def flop_counter(out: Path, _device: str) -> Iterator[Begin]:
    """FlopCounterMode around the steps: its table and its counts by module and operator."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False, depth=4) as counter:
        yield lambda _program: None
    with contextlib.suppress(ImportError):  # the table needs the package tabulate
        (out / "table.txt").write_text(counter.get_table(depth=4))
    counts = {module: sum(operators.values()) for module, operators in counter.get_flop_counts().items()}
    (out / "flops.json").write_text(json.dumps(counts))


TOOLS = {
    "none": none,
    "profiler": profiler,
    "snapshot": snapshot,
    "mem_tracker": mem_tracker,
    "zeus": zeus,
    "flop_counter": flop_counter,
}


def train(arguments: argparse.Namespace, told: dict[str, Any]) -> None:
    """Train under the tool for the first steps, and then without it; add times and counters to ``told``."""
    torch.manual_seed(0)
    cuda = arguments.device == "cuda"
    # A rank has its own output; the second one has twice the batch.
    rank = int(os.environ.get("RANK", "0"))
    out = arguments.out / f"rank-{rank}" if "RANK" in os.environ else arguments.out
    out.mkdir(parents=True, exist_ok=True)
    told["step_ms"] = []

    def steps(program: Program, first: int, last: int, between: Between) -> None:
        for step in range(first, last + 1):
            started_s = time.perf_counter()
            program.take_step(step)
            if cuda:
                torch.cuda.synchronize()
            told["step_ms"].append((time.perf_counter() - started_s) * 1e3)
            if between is not None and step < last:
                between()

    with TOOLS[arguments.tool](out, arguments.device) as begin:
        program = build(arguments.program, arguments.device, arguments.scale * (1 + rank))
        after_step = begin(program)
        steps(program, 1, program.steps if arguments.program == "crash" else WINDOW, after_step)
        told["peak_bytes"] = torch.cuda.max_memory_allocated() if cuda else None
        told["used_bytes"] = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0] if cuda else None
        recorded_s = time.perf_counter()
    told["output_s"] = time.perf_counter() - recorded_s
    steps(program, WINDOW + 1, program.steps, None)


def main() -> None:
    """Train, and write the program's own times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--tool", choices=TOOLS, default="none")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--told", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=int, default=1)
    arguments = parser.parse_args()
    told: dict[str, Any] = {}
    try:
        train(arguments, told)
    except Unavailable as error:
        told["unavailable"] = str(error)
        raise SystemExit(UNAVAILABLE) from None
    finally:
        told["ended_s"] = time.time()
        if os.environ.get("RANK", "0") == "0":
            arguments.told.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
