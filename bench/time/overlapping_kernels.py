"""Measures whether the kernels of a speech encoder overlap: busy time against the sum of kernels, stream by stream.

The encoder has strided convolutions, a grouped positional convolution with weight normalization, and bf16 autocast. It
trains with the timing measurement of gpuledger, then in torch.profiler, then bare. Each gives the kernels of a step:
their sum, the time in which at least one ran, the streams, the pairs that overlap on one stream, and those with the
same times. A bare step that was launched while the GPU was kept waiting takes the busy time if that one is true, and
the sum if kernels do not overlap.

Usage: python bench/time/overlapping_kernels.py --out bench/time/results/h200/overlapping_kernels.json [--small]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

import gpuledger
from gpuledger.analyze.step.times import break_down_time
from gpuledger.analyze.step.work import names_of, union_ns

STEPS = 12
WAITING_CYCLES = 300_000_000
"""GPU clock cycles before a queued step, about 0.15 s."""


class Encoder(nn.Module):
    """An encoder of speech: convolutions of samples, positions by a grouped convolution, transformer layers."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        sizes = [(1, 10, 5), *[(width, 3, 2)] * 4, *[(width, 2, 2)] * 2]
        self.features = nn.Sequential(
            *[nn.Sequential(nn.Conv1d(first, width, kernel, stride), nn.GELU()) for first, kernel, stride in sizes]
        )
        self.positions = weight_norm(nn.Conv1d(width, width, 128, padding=64, groups=16), dim=2)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Return features of each frame."""
        found = self.features(samples.unsqueeze(1))
        found = found + self.positions(found)[..., :-1]
        return self.layers(found.transpose(1, 2))


def make_step(device: str, *, small: bool) -> Callable[[], None]:
    """Return one training step."""
    torch.manual_seed(0)
    model = Encoder(64 if small else 512, 1 if small else 8).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    batch = torch.randn(2 if small else 16, 8_000 if small else 80_000, device=device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()

    return step


def summarize(start: np.ndarray, end: np.ndarray, stream: np.ndarray, names: list[str], steps: int) -> dict[str, Any]:
    """Return sums per step in ms, and the pairs of successive kernels that overlap on one stream."""
    pairs: Counter[str] = Counter()
    streams = {}
    for number in np.unique(stream).tolist():
        rows = np.flatnonzero(stream == number)
        rows = rows[np.argsort(start[rows], kind="stable")]
        late = np.flatnonzero(start[rows][1:] < end[rows][:-1])
        twice = (np.diff(start[rows]) == 0) & (np.diff(end[rows]) == 0)
        pairs.update(f"{names[rows[one]][:60]} > {names[rows[one + 1]][:60]}" for one in late.tolist())
        streams[number] = {
            "kernels": int(rows.size),
            "sum_ms": float((end[rows] - start[rows]).sum()) / steps / 1e6,
            "busy_ms": union_ns(start[rows], end[rows]) / steps / 1e6,
            "overlapping_pairs": int(late.size),
            "same_times": int(twice.sum()),
        }
    total = {"sum_ms": float((end - start).sum()) / steps / 1e6, "busy_ms": union_ns(start, end) / steps / 1e6}
    return {**total, "steps": steps, "streams": streams, "pairs": dict(pairs.most_common(12))}


def by_gpuledger(step: Callable[[], None]) -> dict[str, Any]:
    """Return the kernels of the timing measurement, step by step."""
    with tempfile.TemporaryDirectory() as directory:
        with gpuledger.record(out=Path(directory) / "run", steps=(1, 1), passes="memory,time") as recording:
            for _ in range(STEPS):
                step()
        rank = recording.run().rank()
        words, timed, shown = names_of(rank), rank.manifest.time_steps, break_down_time(rank)
        assert timed is not None
        assert shown is not None
        rows = [
            row
            for row in rank.table("spans").to_pylist()
            if row["kind"] != "phase" and timed[0] <= row["step"] <= timed[1] and row["device_idx"] == shown.device_idx
        ]
        per_step = {number: of_rows([row for row in rows if row["step"] == number], words, 1) for number in timed}
        in_view = {"sum_ms": shown.work_ns / 1e6, "busy_ms": shown.busy_ns / 1e6}
        return {**of_rows(rows, words, shown.steps), "shown": in_view, "profiled": timed, "by_step": per_step}


def of_rows(rows: list[dict[str, Any]], words: dict[int, str], steps: int) -> dict[str, Any]:
    """Return the summary of rows of the table ``spans``."""
    start, end, stream = (np.array([row[name] for row in rows]) for name in ("start_ns", "end_ns", "stream"))
    return summarize(start, end, stream, [words.get(row["name_id"], "") for row in rows], steps)


def by_torch(step: Callable[[], None]) -> dict[str, Any] | None:
    """Return the kernels of two steps in torch.profiler; None without a GPU."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(2):
            step()
        torch.cuda.synchronize()
    events = [one for one in profiler.profiler.kineto_results.events() if one.device_type().name == "CUDA"]
    marks = [hasattr(one, "is_user_annotation") and one.is_user_annotation() for one in events]
    events = [one for one, is_mark in zip(events, marks, strict=True) if not is_mark and one.duration_ns()]
    start = np.array([one.start_ns() for one in events])
    end = start + np.array([one.duration_ns() for one in events])
    stream = np.array([one.device_resource_id() for one in events])
    return summarize(start, end, stream, [one.name() for one in events], 2)


def queued_ms(step: Callable[[], None]) -> float:
    """Return the median time that the GPU takes for a step that was launched while it was kept waiting, in ms.

    The GPU does not wait for the CPU then, unless a step launches more kernels than its queue has room for.
    """
    times = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        torch.cuda._sleep(WAITING_CYCLES)
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        step()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after))
    return statistics.median(times)


def bare_ms(step: Callable[[], None], wait: Callable[[], None]) -> float:
    """Return the median time of a step, each with a synchronization, in ms."""
    times = []
    for _ in range(STEPS):
        wait()
        started_s = time.perf_counter()
        step()
        wait()
        times.append(time.perf_counter() - started_s)
    return statistics.median(times) * 1e3


def main() -> None:
    """Measure, and write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    on_card = torch.cuda.is_available()
    device = "cuda" if on_card else "cpu"
    step, wait = make_step(device, small=options.small), torch.cuda.synchronize if on_card else (lambda: None)
    for _ in range(3):
        step()
    results = {"bare_ms": bare_ms(step, wait), "queued_ms": queued_ms(step) if on_card else None}
    results["gpuledger"] = by_gpuledger(step)
    results["torch_profiler"] = by_torch(step) if on_card else None
    results["bare_after_ms"] = bare_ms(step, wait)
    write_results(options.out, {"environment": describe_environment(device), **results})
    print(
        {
            name: value if not isinstance(value, dict) else (value["busy_ms"], value["sum_ms"])
            for name, value in results.items()
        }
    )


if __name__ == "__main__":
    main()
