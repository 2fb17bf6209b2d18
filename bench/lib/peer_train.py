"""One training under one tool, in a process of its own: used by bench/peers/side_by_side.py.

Each tool is used as its own documentation says, around the first steps, and writes its output into a directory. With
``--tool none`` the program knows of no tool: so it runs bare, and under ``gpuledger run``. side_by_side.py also takes
the tools from here to measure their costs inside one process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from peer_programs import PLANTED_LAYER, ROWS, WIDTH, WINDOW, Program, build

UNAVAILABLE = 77
"""Exit status where a tool is not there: not installed, or not for this device."""
LONG_S = 4.0
"""Seconds of the program of which energy is asked."""


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
def profiler(out: Path, device: str, *, only_trace: bool = False) -> Iterator[Begin]:
    """torch.profiler with memory, shapes, stacks, modules and FLOPs: trace, tables and memory timeline."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    options = {"profile_memory": True, "record_shapes": True, "with_stack": True, "with_modules": True}
    with profile(activities=activities, with_flops=True, **options) as watched:  # type: ignore[arg-type]
        yield lambda _program: None
    watched.export_chrome_trace(str(out / "trace.json"))
    if only_trace:
        return
    averages = watched.key_averages(group_by_stack_n=5)
    (out / "averages.txt").write_text(averages.table(sort_by="self_cpu_memory_usage", row_limit=50))
    flops = {one.key: one.flops for one in watched.key_averages() if one.flops}
    (out / "flops.json").write_text(json.dumps(flops))
    with contextlib.suppress(Exception):  # the export is deprecated, and absent from later versions
        watched.export_memory_timeline(str(out / "timeline.json"), device="cuda:0" if device == "cuda" else device)


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
    """Zeus: one energy window around the steps, from an idle GPU to an idle GPU."""
    try:
        from zeus.monitor import ZeusMonitor
    except ImportError:
        raise Unavailable("zeus is not installed") from None
    if device != "cuda":
        raise Unavailable("no GPU")
    monitor = ZeusMonitor(gpu_indices=[0])
    yield lambda _program: monitor.begin_window("steps")
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
    counts = {
        module: {str(operator): count for operator, count in operators.items()}
        for module, operators in counter.get_flop_counts().items()
    }
    (out / "flops.json").write_text(json.dumps(counts))


@contextlib.contextmanager
def nvidia_smi(out: Path, device: str) -> Iterator[Begin]:
    """A poll of nvidia-smi: memory in use and power, every 20 ms."""
    if device != "cuda" or not shutil.which("nvidia-smi"):
        raise Unavailable("no nvidia-smi" if device == "cuda" else "no GPU")
    words = ["nvidia-smi", "-i", "0", "--query-gpu=memory.used,power.draw.instant", "--format=csv,noheader,nounits"]
    with (out / "smi.csv").open("w") as file, subprocess.Popen([*words, "-lms", "20"], stdout=file) as poll:
        try:
            yield lambda _program: None
        finally:
            poll.terminate()


@contextlib.contextmanager
def gpuledger(out: Path, _device: str) -> Iterator[Begin]:
    """gpuledger.record with memory and time, for where the process is not started by ``gpuledger run``."""
    import gpuledger as package

    with package.record("side", out=out / "side.ledger", passes="memory,time"):
        yield lambda _program: None


TOOLS: dict[str, Callable[[Path, str], contextlib.AbstractContextManager[Begin]]] = {
    "none": none,
    "profiler": profiler,
    "snapshot": snapshot,
    "mem_tracker": mem_tracker,
    "zeus": zeus,
    "flop_counter": flop_counter,
    "nvidia_smi": nvidia_smi,
    "gpuledger": gpuledger,
}


def take_steps(program: Program, numbers: Iterable[int], cuda: bool, between: Between = None) -> Iterator[float]:
    """Take steps, and return the ms of each from idle device to idle device."""
    for step in numbers:
        started_s = time.perf_counter()
        program.take_step(step)
        if cuda:
            torch.cuda.synchronize()
        yield (time.perf_counter() - started_s) * 1e3
        if between is not None:
            between()


def joules() -> float:
    """Return the GPU's energy counter."""
    import pynvml

    pynvml.nvmlInit()
    return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(0))) / 1e3


def alone_ms(program: Program, rows: int, device: str) -> float:
    """Return the median ms of the planted layer's forward alone: by CUDA events on a GPU."""
    values = torch.randn(rows, WIDTH, device=device)
    layer = program.model.get_submodule(PLANTED_LAYER)
    found: list[float] = []
    for _ in range(20):
        if device == "cuda":
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(2_000_000)  # the launches are then ahead of the GPU
            first.record()
            layer(values)
            last.record()
            torch.cuda.synchronize()
            found.append(first.elapsed_time(last))
        else:
            started_s = time.perf_counter()
            layer(values)
            found.append((time.perf_counter() - started_s) * 1e3)
    return statistics.median(found[5:])


def workspace_bytes() -> int:
    """Return the bytes that cuBLAS holds in the allocator, and give them back."""
    before = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    return before - torch.cuda.memory_allocated()


def train(arguments: argparse.Namespace, told: dict[str, Any]) -> None:
    """Train under the tool for the first steps, and then without it; add times and counters to ``told``."""
    torch.manual_seed(0)
    cuda = arguments.device == "cuda"
    told["step_ms"] = []
    program_name = arguments.program
    early = build(program_name, arguments.device, arguments.scale) if program_name == "compiled" else None
    if early is not None:  # the tools are to watch compiled steps, and not the compiler
        list(take_steps(early, range(1, 4), cuda))
    with TOOLS[arguments.tool](arguments.out, arguments.device) as begin:
        program = early or build(program_name, arguments.device, arguments.scale)
        if program_name == "long":
            list(take_steps(program, range(1, 6), cuda))
        after_step = begin(program)
        started_s, started_j = time.monotonic(), joules() if cuda and program_name == "long" else None
        for step, spent_ms in enumerate(take_steps(program, itertools.count(1), cuda, after_step), 1):
            told["step_ms"].append(spent_ms)
            if step == 3 and cuda:
                free, total = torch.cuda.mem_get_info()
                told |= {"used_bytes": total - free, "outside_bytes": total - free - torch.cuda.memory_reserved()}
            if step >= (program.steps if program_name == "crash" else WINDOW) and (
                program_name != "long" or time.monotonic() - started_s > LONG_S
            ):
                break
        told["steps_inside"] = len(told["step_ms"])
        told["peak_bytes"] = torch.cuda.max_memory_allocated() if cuda else None
        if started_j is not None:
            told["step_energy_j"] = (joules() - started_j) / told["steps_inside"]
        recorded_s = time.perf_counter()
    told["output_s"] = time.perf_counter() - recorded_s
    if program_name != "long":
        told["step_ms"] += take_steps(program, range(WINDOW + 1, program.steps + 1), cuda)
    if program_name == "planted" and arguments.tool == "none" and arguments.alone:
        told["wide_forward_ms"] = alone_ms(program, ROWS * arguments.scale, arguments.device)
        told["workspace_bytes"] = workspace_bytes() if cuda else None


def main() -> None:
    """Train, and write the program's own times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--tool", choices=TOOLS, default="none")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--told", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="time the planted layer alone at the end")
    arguments = parser.parse_args()
    told: dict[str, Any] = {}
    try:
        train(arguments, told)
    except Unavailable as error:
        told["unavailable"] = str(error)
        raise SystemExit(UNAVAILABLE) from None
    finally:
        told["ended_s"] = time.time()
        arguments.told.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
