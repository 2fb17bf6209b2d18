"""Compares operators measured with hot and with rotating inputs with the same operators inside their model.

Usage: python bench/operators/operator_cache.py --model torchvision:resnet50 --input 32x3x224x224 --out FILE
       python bench/operators/operator_cache.py --device cpu --model operator_pairs:conv_net
           --input 16x3x64x64 --out FILE
The cost in its place: the model's operators run one after the other in their order, and each is timed there (events on
a GPU, the clock on a processor). Beside hot and rotating: a chain of identical layers, output into input where the
shape is kept, and predecessor + operator - predecessor.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from torch.utils._python_dispatch import TorchDispatchMode

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.method import Method, Mode, mode_weights
from gpuledger.ops.measure.captured_models import step_of
from gpuledger.ops.measure.copies import make_copies
from gpuledger.ops.measure.measured_device import Device, find_device
from gpuledger.ops.measure.one import measure_one
from gpuledger.ops.measure.whole import measure_whole
from gpuledger.ops.workloads.captures import asked_for, capture_model
from gpuledger.ops.workloads.describe import key_of
from gpuledger.ops.workloads.workload_spec import WorkloadSpec

WAYS = ("hot", "rotating", "by_reuse", "predecessor", "chain")
HELD_CYCLES = 600_000
"""About 0.3 ms: longer than the host takes to launch an operator."""


class InPlace(TorchDispatchMode):
    """Times each operator where it stands in the model, and remembers its predecessor."""

    def __init__(self, place: Device) -> None:
        super().__init__()
        self._place = place
        self.times_ns: dict[OperatorKey, list[float]] = defaultdict(list)
        self.before: dict[OperatorKey, OperatorKey] = {}
        self._last: OperatorKey | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = self._place.device.partition(":")[0]
        given = kwargs or {}
        result, spent_ns = timed(lambda: func(*args, **given), on_card=self._place.on_card)
        key = key_of(func, args, given, result, lambda tensor: tensor.device.type == device, device)
        self.times_ns[key].append(spent_ns)
        if self._last is not None:
            self.before.setdefault(key, self._last)
        self._last = key
        return result


def timed(call: Callable[[], Any], *, on_card: bool) -> tuple[Any, float]:
    """Return a call's result and the nanoseconds it took."""
    if not on_card:
        start_ns = time.perf_counter_ns()
        result = call()
        return result, float(time.perf_counter_ns() - start_ns)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(HELD_CYCLES)  # the GPU waits until everything is launched, so no launch from the host is timed
    start.record()
    result = call()
    end.record()
    end.synchronize()
    return result, start.elapsed_time(end) * 1e6 - between_events_ns()


@functools.cache
def between_events_ns() -> float:
    """Return what two events in a row are apart with nothing between them."""
    found = []
    for _ in range(50):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(HELD_CYCLES)
        start.record()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) * 1e6)
    return statistics.median(found)


def pair_ns(before: OperatorKey, key: OperatorKey, place: Device, repeats: int = 15) -> float | None:
    """Return what an operator adds to its predecessor: both in a row, less the predecessor alone."""
    try:
        (first,), (second,) = make_copies(before, Mode.HOT, place), make_copies(key, Mode.HOT, place)
        both = [timed(lambda: (first(), second()), on_card=place.on_card)[1] for _ in range(repeats)]
        alone = [timed(first, on_card=place.on_card)[1] for _ in range(repeats)]
    except Exception as error:
        print(f"{key.text}: {type(error).__name__}", file=sys.stderr)
        return None
    return statistics.median(both) - statistics.median(alone)


def chain_ns(key: OperatorKey, place: Device, length: int = 8, repeats: int = 15) -> float | None:
    """Return one call's time in a chain that hands each output on as input; None where the shape is not kept."""
    (call,) = make_copies(key, Mode.HOT, place)
    tensor = next((value for value in call._args if isinstance(value, torch.Tensor)), None)
    made = call()
    if tensor is None or not isinstance(made, torch.Tensor) or made.shape != tensor.shape or made is tensor:
        return None

    def chain() -> None:
        value, rest = tensor, call._args[1:]
        for _ in range(length):
            value = call.function(value, *rest, **call._kwargs)

    return statistics.median(timed(chain, on_card=place.on_card)[1] for _ in range(repeats)) / length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--device")
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    place = find_device(options.device)
    workload = capture_model(
        asked_for(WorkloadSpec(options.model, inputs=options.input)), None if place.on_card else "cpu"
    )
    step = step_of(workload, place, trusted=True)
    step()
    with torch.no_grad(), InPlace(place) as inside:
        for _ in range(options.steps):
            step()
    method = Method(energy=False)
    rows = []
    for use in workload.uses:
        real_ns = statistics.median(inside.times_ns.get(use.key, [float("nan")]))
        found: dict[str, float | None] = {
            mode.value: measure_one(use.key, mode, place, method).time_median_ns for mode in Mode
        }
        before = inside.before.get(use.key)
        found["predecessor"] = None if before is None else pair_ns(before, use.key, place)
        found["chain"] = chain_ns(use.key, place)
        weights = mode_weights(use.reuse_bytes, place.cache_bytes)
        if all(found[mode.value] for mode in weights):
            found["by_reuse"] = sum(weight * (found[mode.value] or 0.0) for mode, weight in weights.items())
        rows.append({"operator": use.key.text, "count": use.count, "reuse_bytes": use.reuse_bytes,
                     "in_model_ns": real_ns, **found})  # fmt: skip
    errors = {name: error_of(rows, name) for name in WAYS}
    whole = measure_whole(step, place, method)
    results = {"environment": describe_environment(place.device), "cache_bytes": place.cache_bytes,
               "model": options.model, "errors": errors, "whole_ns": whole.time_ns.median,
               "graph_ns": None if whole.graph_time_ns is None else whole.graph_time_ns.median,
               "sums_ns": {name: sum_of(rows, name) for name in ("in_model", *WAYS)}, "operators": rows}  # fmt: skip
    write_results(options.out, results)
    print(errors)


def sum_of(rows: list[dict[str, Any]], name: str) -> float:
    """Return what all calls come to in one way; an operator it cannot tell of counts as it is in its place."""
    key = name if name in WAYS else f"{name}_ns"
    return sum(row["count"] * (row.get(key) or row["in_model_ns"]) for row in rows)


def error_of(rows: list[dict[str, Any]], name: str) -> dict[str, float] | None:
    """Return how far one way is off, weighted by the time in the model, and how many operators it can tell."""
    known = [row for row in rows if row.get(name) and row["in_model_ns"] == row["in_model_ns"]]
    total_ns = sum(row["count"] * row["in_model_ns"] for row in known)
    if not total_ns:
        return None
    away_ns = sum(row["count"] * abs(row[name] - row["in_model_ns"]) for row in known)
    sum_ns = sum(row["count"] * row[name] for row in known)
    return {"weighted_error_frac": away_ns / total_ns, "sum_frac": sum_ns / total_ns, "operators": len(known)}


if __name__ == "__main__":
    main()
