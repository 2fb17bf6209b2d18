"""A plain training script for one model, as a user would write it; it knows nothing of who may be watching.

Usage: python bench/lib/train_one.py gpt2 --steps 8
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time

import torch
from models import MODELS


def main() -> None:
    """Train some steps and print one line of JSON: peak bytes and the median step time of the later half."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.0, help="go on until so long after the first step")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument("--small", action="store_true")
    parser.add_argument(
        "--times", action="store_true", help="print also each step's time, and when they began and ended"
    )
    arguments = parser.parse_args()

    torch.manual_seed(0)
    workload = MODELS[arguments.model].build(arguments.device, small=arguments.small, batch_size=arguments.batch_size)
    on_card = arguments.device.startswith("cuda")
    step_times_s: list[float] = []
    began_unix_s = time.time()
    until_s = math.inf
    while len(step_times_s) < arguments.steps or time.perf_counter() < until_s:
        started_s = time.perf_counter()
        workload.train(workload.make_batch())
        if on_card:
            torch.cuda.synchronize()
        step_times_s.append(time.perf_counter() - started_s)
        if len(step_times_s) == 1:
            until_s = time.perf_counter() + arguments.seconds
    print(
        json.dumps(
            {
                "model": arguments.model,
                "peak_allocated_bytes": torch.cuda.max_memory_allocated() if on_card else None,
                "peak_reserved_bytes": torch.cuda.max_memory_reserved() if on_card else None,
                **({"step_times_s": step_times_s} if arguments.times else {}),
                **({"training_unix_s": [began_unix_s, time.time()]} if arguments.times else {}),
                "step_time_ns": round(statistics.median(step_times_s[len(step_times_s) // 2 :]) * 1e9),
            }
        )
    )


if __name__ == "__main__":
    main()
