"""Measures what importing a memory snapshot of a million events costs: wall time and peak memory of processes.

A child process writes snapshots in the structure that torch 2.11 and later dump: without stacks, and with twenty frames
an event. ``gpuledger import torch-snapshot`` is then started as a user would, and a bare ``pickle.load`` of the same
file beside it, which keeps nothing and would run whatever the file says.

Usage: python bench/report/import_snapshot.py [--events 1000000] [--repeats 5]
           [--out bench/report/results/cpu/import_snapshot.json]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scale import ROOT, describe, measure, python

TARGET = {"wall_s": 5.0, "peak_rss_bytes": 1 << 30}
FRAMES = {"without stacks": 0, "with stacks": 20}
MIB = 1 << 20
START_US = 1_700_000_000_000_000
SMALL, LARGE = 1 << 40, 1 << 41
SIZES = (512, 1_000, 4_096, 65_536, 300_000, 2 * MIB, 5 * MIB, 8 * MIB, 20 * MIB + 3)
BLOCKS_A_STEP = 2_400
STACKS, LINES = 5_000, 3_000
MAKE = "import sys; sys.path.insert(0, sys.argv[1]); import import_snapshot as own; own.write(*sys.argv[2:])"
LOAD = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"


def write(path: str, events: str, frames: str) -> None:
    """Write a snapshot of so many events, with so many frames each."""
    import pickle

    with open(path, "wb") as stream:
        pickle.dump(make_snapshot(int(events), int(frames)), stream)


def make_snapshot(events: int, frames: int) -> dict[str, Any]:
    """Return steps that allocate some thousand blocks one after the other and give them back in any order."""
    dice = random.Random(0)
    lines = [
        {"filename": f"/usr/lib/python3/torch/nn/modules/m{n % 50}.py", "line": n, "name": f"f{n}"}
        for n in range(LINES)
    ]
    stacks = [[dice.choice(lines) for _ in range(frames)] for _ in range(STACKS if frames else 0)]
    trace: list[dict[str, Any]] = []
    time_us = START_US
    for action, address, size in _events(dice, events):
        time_us += dice.randrange(1, 30)
        trace.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": time_us,
                "compile_context": "".join(("N", "/A")),  # another object each time, as in torch
                "user_metadata": "",
            }
        )
        if stacks:
            same = action == "free_completed"  # torch gives both events of a free the same stack
            trace[-1]["frames"] = trace[-2]["frames"] if same else list(dice.choice(stacks))
    segments = [_segment(SMALL, 1 << 30, "small"), _segment(LARGE, 1 << 36, "large")]
    settings = {"max_split_size": -1, "expandable_segments": False, "roundup_power2_divisions": {"1": 0}}
    return {"segments": segments, "device_traces": [trace], "allocator_settings": settings, "external_annotations": []}


def _events(dice: random.Random, count: int) -> Iterator[tuple[str, int, int]]:
    yield "segment_alloc", SMALL, 1 << 30
    yield "segment_alloc", LARGE, 1 << 36
    done = 2
    sizes = [dice.choice(SIZES) for _ in range(BLOCKS_A_STEP)]
    while done < count:
        places = {True: SMALL, False: LARGE}
        live = []
        for size in sizes:
            rounded = -(-size // 512) * 512
            pool = rounded <= MIB
            live.append((places[pool], size))
            yield "alloc", places[pool], size
            places[pool] += rounded
        dice.shuffle(live)
        for address, size in live:
            yield "free_requested", address, size
            yield "free_completed", address, size
        done += 3 * len(sizes)
    yield "snapshot", 0, 0


def _segment(address: int, size: int, pool: str) -> dict[str, Any]:
    block = {"address": address, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
    return {
        "device": 0,
        "address": address,
        "total_size": size,
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "stream": 0,
        "segment_type": pool,
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [block],
    }


def main() -> None:
    """Measure, print a line a figure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "bench" / "report" / "results" / "cpu" / "import_snapshot.json"
    )
    asked = parser.parse_args()
    results: dict[str, Any] = {"events": asked.events, "repeats": asked.repeats, "environment": describe()}
    with tempfile.TemporaryDirectory() as temporary:
        for name, frames in FRAMES.items():
            path = Path(temporary) / "snapshot.pickle"
            python(MAKE, ROOT / "bench" / "report", path, str(asked.events), str(frames))
            run = Path(temporary) / "imported"
            tool = [sys.executable, "-m", "gpuledger", "import", "torch-snapshot", str(path)]
            ours = measure([*tool, "--out", str(run), "--force"], asked.repeats)
            bare = measure([sys.executable, "-c", LOAD, str(path)], asked.repeats)
            reached = all(ours[key] <= limit for key, limit in TARGET.items())
            figures = {"file_bytes": path.stat().st_size, "import": ours, "bare unsafe load": bare}
            results[name] = {**figures, "target": TARGET, "reached": reached}
            for kind in ("import", "bare unsafe load"):
                figure = figures[kind]
                print(f"{name:16}{kind:18}{figure['wall_s']:7.2f} s{figure['peak_rss_bytes'] >> 20:7} MiB")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"written to {asked.out}")


if __name__ == "__main__":
    main()
