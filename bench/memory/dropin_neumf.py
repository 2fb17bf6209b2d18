"""Runs the drop-in memory profiler on NeuMF at MovieLens-20M size, and compares it with the older tool's example.

The model is the one of that tool's README: 138,493 users and 26,744 items, embeddings of 64 and 128, layers of 256,
128 and 64, with its names. Checked: the printed weights line by line; that the last block sums to the allocated bytes
and these are torch's own peak; that peak cached is explained to the byte; both modes of ``zero_grad``. Timed: an
iteration that is not reported against one without a profiler.

Usage: python bench/memory/dropin_neumf.py --out bench/memory/results/h200/dropin_neumf.json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from models import ITEMS, USERS
from torch import Tensor, nn
from torch.nn import functional as F

from gpuledger import memory_profiler
from gpuledger.integrations.memory_table import MemoryReport

README_WEIGHTS_MB = {
    "Total layer weight usage": 127,
    "mf_user_embed.weight": 35,
    "mf_item_embed.weight": 7,
    "mlp_user_embed.weight": 71,
    "mlp_item_embed.weight": 14,
    "mlp.0.weight": 0,
    "mlp.0.bias": 0,
    "mlp.1.weight": 0,
    "mlp.1.bias": 0,
    "mlp.2.weight": 0,
    "mlp.2.bias": 0,
    "final.weight": 0,
    "final.bias": 0,
}
"""The table in the older tool's README."""
README_UNEXPLAINED_FRAC = round(1 - (301 + 127 + 127 + 34) / 857, 3)
"""What its lines left open of 857 MB cached."""
PERIOD = 5


class NeuMF(nn.Module):
    """Neural matrix factorization (He et al., 2017) with the names of the README."""

    def __init__(self, users: int, items: int, factors: int, layers: tuple[int, ...]) -> None:
        super().__init__()
        self.mf_user_embed = nn.Embedding(users, factors)
        self.mf_item_embed = nn.Embedding(items, factors)
        self.mlp_user_embed = nn.Embedding(users, layers[0] // 2)
        self.mlp_item_embed = nn.Embedding(items, layers[0] // 2)
        self.mlp = nn.ModuleList(nn.Linear(before, after) for before, after in itertools.pairwise(layers))
        self.final = nn.Linear(layers[-1] + factors, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return one logit a pair, [pairs, 1]."""
        factored = self.mf_user_embed(user) * self.mf_item_embed(item)
        layered = torch.cat((self.mlp_user_embed(user), self.mlp_item_embed(item)), 1)
        for layer in self.mlp:
            layered = F.relu(layer(layered))
        return self.final(torch.cat((factored, layered), 1))  # type: ignore[no-any-return]


def make_step(model: nn.Module, device: str, pairs: int, *, set_to_none: bool) -> Callable[[], None]:
    """Return one iteration of a training as in the README's example."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    users, items = model.mf_user_embed.num_embeddings, model.mf_item_embed.num_embeddings

    def step() -> None:
        user, item = torch.randint(users, (pairs,)).to(device), torch.randint(items, (pairs,)).to(device)
        label = torch.rand(pairs, 1).to(device)
        loss = F.binary_cross_entropy_with_logits(model(user, item), label)
        optimizer.zero_grad(set_to_none=set_to_none)
        loss.backward()
        optimizer.step()

    return step


def profile_training(model: nn.Module, step: Callable[[], None], on_card: bool) -> dict[str, Any]:
    """Return what the drop-in says of the third report of a training, against torch's own counters."""
    printed = io.StringIO()
    profiler = memory_profiler(model, print_period=PERIOD, csv=True)
    counters: dict[str, int] = {}
    for number in range(1, 3 * PERIOD + 1):
        if on_card and number == 3 * PERIOD:
            torch.cuda.reset_peak_memory_stats()
        step()
        if on_card:
            torch.cuda.synchronize()
            counters = {
                "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
                "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            }
        with contextlib.redirect_stdout(printed):
            profiler.record_stats()
    with contextlib.redirect_stdout(printed):
        profiler.epoch_end()
    assert profiler.last is not None
    table = printed.getvalue().rpartition("*" * 43 + "\nMemory Usage")[2].splitlines()
    return {**check_report(profiler.last, counters), "table": table}


def check_report(report: MemoryReport, counters: dict[str, int]) -> dict[str, Any]:
    """Return the figures of one report and how they compare."""
    (device,) = report.devices
    explained_bytes = sum(size for _, size in (*device.at_peak, *device.beyond))
    weights = {"Total layer weight usage": report.weight_bytes, **dict(report.weights)}
    printed_mb = {name: round(size / 1e6) for name, size in weights.items()}
    old_lines_bytes = sum(
        (device.feature_map_bytes, report.weight_bytes, report.gradient_bytes, device.intermediate_gradient_bytes)
    )
    return {
        "weights_mb": printed_mb,
        "weights_equal_readme": printed_mb == README_WEIGHTS_MB,
        "weight_bytes": report.weight_bytes,
        "gradient_bytes": report.gradient_bytes,
        "feature_map_bytes": device.feature_map_bytes,
        "intermediate_gradient_bytes": device.intermediate_gradient_bytes,
        "optimizer_state_bytes": device.optimizer_state_bytes,
        "at_peak": dict(device.at_peak),
        "beyond": dict(device.beyond),
        "card": dict(device.card),
        "allocated_bytes": device.allocated_bytes,
        "last_block_sum_bytes": sum(size for _, size in device.at_peak),
        "peak_cached_bytes": device.peak_cached_bytes,
        "unexplained_bytes": device.peak_cached_bytes - explained_bytes,
        "unexplained_frac_of_older_lines": round(1 - old_lines_bytes / device.peak_cached_bytes, 3),
        "unexplained_frac_in_readme": README_UNEXPLAINED_FRAC,
        "torch": counters,
        "equals_torch": not counters
        or (device.allocated_bytes, device.peak_cached_bytes)
        == (counters["peak_allocated_bytes"], counters["peak_reserved_bytes"]),
    }


def time_iterations(model: nn.Module, step: Callable[[], None], wait: Callable[[], None]) -> dict[str, Any]:
    """Return milliseconds of an iteration: without a profiler, not reported, reported, and of the report itself."""

    def timed(function: Callable[[], None]) -> float:
        wait()
        started_s = time.perf_counter()
        function()
        wait()
        return (time.perf_counter() - started_s) * 1e3

    bare_ms = [timed(step) for _ in range(40)]
    kinds: dict[str, list[float]] = {"unreported": [], "reported": [], "report": []}
    profiler = memory_profiler(model, print_period=PERIOD)
    with contextlib.redirect_stdout(io.StringIO()):
        for number in range(1, 10 * PERIOD + 1):
            kinds["unreported" if number % PERIOD else "reported"].append(timed(step))
            spent_ms = timed(profiler.record_stats)
            if number % PERIOD == 0:
                kinds["report"].append(spent_ms)
        profiler.epoch_end()
    return {"bare_ms": _median(bare_ms), **{f"{kind}_ms": _median(times) for kind, times in kinds.items()}}


def _median(times_ms: list[float]) -> float:
    return round(statistics.median(times_ms), 4)


def main() -> None:
    """Run both modes of zero_grad, check, time, and write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/memory/results/h200/dropin_neumf.json"))
    parser.add_argument("--batch-size", type=int, default=65_536)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    out, on_card = arguments.out.absolute(), arguments.device.startswith("cuda")
    started_s = time.perf_counter()
    results: dict[str, Any] = {"environment": describe_environment(arguments.device), "zero_grad": {}}
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        for set_to_none in (True, False):
            model = NeuMF(USERS, ITEMS, 64, (256, 256, 128, 64)).to(arguments.device)
            step = make_step(model, arguments.device, arguments.batch_size, set_to_none=set_to_none)
            key = "set_to_none" if set_to_none else "zeros"
            results["zero_grad"][key] = profile_training(model, step, on_card)
        results["times"] = time_iterations(model, step, torch.cuda.synchronize if on_card else (lambda: None))
    results["seconds"] = round(time.perf_counter() - started_s, 1)
    write_results(out, results)
    for key, figures in results["zero_grad"].items():
        print(key, *figures["table"], sep="\n")
        print({name: value for name, value in figures.items() if name != "table"})
    print(results["times"], results["seconds"], "s")


if __name__ == "__main__":
    main()
