"""Measures the cost of the live view: its share of a core at 2 Hz, and the step time with and without it.

Usage: python bench/watch/live_cost.py --out bench/watch/results/h200/live.json
           (90 s; --device cpu --run RUN without a GPU)
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import select
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from torch import nn

WARM_S, WINDOW_S = 5.0, 15.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--run", help="A run to look at; needed where there is no GPU.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    shares, ratios = [], []
    for _ in range(arguments.rounds):
        bare_s = median_step_s(arguments.device)
        with_view_s, share = watched_step_s(arguments.device, arguments.run)
        shares.append(share)
        ratios.append(with_view_s / bare_s)
    results = {
        "what": "share of a core that `gpuledger live` takes at 2 Hz, and step time with the view over without it",
        "environment": describe_environment(arguments.device),
        "core_share": shares,
        "step_ratio": ratios,
    }
    write_results(arguments.out, results)
    print(json.dumps({"core_share": max(shares), "step_ratio": statistics.median(ratios)}))


def median_step_s(device: str, seconds: float = WINDOW_S) -> float:
    """Return the median step time of a small training that runs for so long."""
    width = 2048 if device.startswith("cuda") else 128
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(4 * width, width, device=device)
    times_s, end_s = [], time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        started_s = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        times_s.append(time.perf_counter() - started_s)
    return statistics.median(times_s[len(times_s) // 10 :])


def watched_step_s(device: str, run: str | None) -> tuple[float, float]:
    """Return the median step time while the view is drawn in a terminal of its own, and the view's share of a core."""
    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    command = [sys.executable, "-m", "gpuledger", "live", *([run] if run else [])]
    view = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    try:
        drain(leader, WARM_S)
        before_s, started_s = cpu_s(view.pid), time.perf_counter()
        step_s = median_step_s(device)
        share = (cpu_s(view.pid) - before_s) / (time.perf_counter() - started_s)
        drain(leader, 0.1)
        os.write(leader, b"q")
        view.wait(10)
    finally:
        view.kill()
        os.close(leader)
    return step_s, share


def drain(leader: int, seconds: float) -> None:
    """Take what the view draws, so that it never waits."""
    end_s = time.perf_counter() + seconds
    while (left_s := end_s - time.perf_counter()) > 0:
        if select.select([leader], [], [], left_s)[0]:
            os.read(leader, 1 << 16)


def cpu_s(pid: int) -> float:
    """Return the processor seconds a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
