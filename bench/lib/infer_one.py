"""A plain inference script for one model, as a user would write it; it knows nothing of who may be watching.

Usage: python bench/lib/infer_one.py gpt2 --calls 60
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from models import MODELS

ARGUMENTS = {"neumf": 2}
"""How many tensors of a batch a model is called with; one where it is not named."""


def main() -> None:
    """Call one model over and over and print one line of JSON: the times of every call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.0, help="go on for so long")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    workload = MODELS[arguments.model].build(arguments.device, small=arguments.small, batch_size=0)
    model, batch = workload.models[0].eval(), workload.make_batch()
    del workload  # its optimizer as well: this is no training
    inputs = batch[: ARGUMENTS.get(arguments.model, 1)]
    step_times_s: list[float] = []
    begun_s = time.perf_counter()
    with torch.no_grad():
        while len(step_times_s) < arguments.calls or time.perf_counter() - begun_s < arguments.seconds:
            started_s = time.perf_counter()
            model(*inputs)
            if arguments.device.startswith("cuda"):
                torch.cuda.synchronize()
            step_times_s.append(time.perf_counter() - started_s)
    later = step_times_s[len(step_times_s) // 2 :]
    print(
        json.dumps(
            {
                "model": arguments.model,
                "step_times_s": step_times_s,
                "step_time_ns": round(statistics.median(later) * 1e9),
            }
        )
    )


if __name__ == "__main__":
    main()
