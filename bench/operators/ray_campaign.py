"""Runs a campaign on all GPUs of this machine with Ray, kills a worker, and checks the result.

Usage: python bench/operators/ray_campaign.py --folder /tmp/campaign
           --out bench/operators/results/h200/ray_campaign.json
       python bench/operators/ray_campaign.py --device cpu --workers 2
           --model operator_pairs:conv_net@16x3x64x64 --out FILE
The command is a user's (`gpuledger ops campaign --config … --ray local`); the killing is this script's. Told are:
records that are there twice, operators measured at once on one worker, the busy share of each record, and how long.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

from gpuledger.ops.database.operator_database import OperatorDatabase, open_database
from gpuledger.ops.database.records import Record

MODELS = ("torchvision:resnet18@32x3x32x32", "torchvision:resnet34@32x3x56x56")
BEFORE_KILL = 5
"""Records in the database when the first worker is killed."""
WORKER = "ray::Measurer"


def write_config(options: argparse.Namespace) -> Path:
    """Write the campaign's file and return where."""
    models = [dict(zip(("model", "inputs"), text.rsplit("@", 1), strict=True)) for text in options.model or MODELS]
    place = options.folder / "campaign.yml"
    place.write_text(
        json.dumps({"mode": options.mode, "models": [{**one, "inputs": [one["inputs"]]} for one in models]})
    )
    return place


def workers_of(campaign: psutil.Process) -> list[psutil.Process]:
    """Return the workers below a campaign's process."""
    found = []
    for process in campaign.children(recursive=True):
        try:
            if any(WORKER in word for word in process.cmdline()[:1]):
                found.append(process)
        except psutil.Error:  # it has ended meanwhile
            continue
    return found


def run(options: argparse.Namespace, database: OperatorDatabase) -> dict[str, Any]:
    """Run the campaign, kill one of its workers, and return what became of both."""
    folder = options.folder
    words = ["ops", "campaign", "--config", str(write_config(options)), "--database", str(folder / "ray.db")]
    words += ["-o", str(folder / "out"), "--ray", "local", "--workers", str(options.workers)]
    words += ["--device", options.device] if options.device else []
    words += ["--time-only"] if options.time_only else []
    started_s = time.monotonic()
    log = (folder / "campaign.log").open("w")
    campaign = psutil.Popen([sys.executable, "-m", "gpuledger", *words], stdout=log, stderr=subprocess.STDOUT)
    killed, first_s = None, None
    while campaign.poll() is None:
        if time.monotonic() - started_s > options.seconds:
            campaign.terminate()
            break
        held = len(database.records())
        if held and first_s is None:
            first_s = time.monotonic() - started_s
        if killed is None and held >= BEFORE_KILL:
            for victim in workers_of(campaign)[:1]:
                killed = {"process": victim.pid, "records_then": held}
                victim.kill()
        time.sleep(0.1)
    status = campaign.wait(30)
    said = [line for line in (folder / "campaign.log").read_text().splitlines() if "(raylet)" not in line]
    again = re.search(r"(\d+) measured again", "\n".join(said))
    return {
        "status": status,
        "seconds": time.monotonic() - started_s,
        "seconds_to_first_record": first_s,
        "killed": killed,
        "repeated_for_drift": int(again[1]) if again else 0,
        "said": said[-20:],
    }


def kept(records: list[Record]) -> dict[str, Any]:
    """Return how often operators are in the database, and what is told of how busy the GPU was."""
    good = [record for record in records if record.status == "ok" and record.method["mode"] != "host"]
    times = Counter((record.key_digest, record.method["mode"], record.energy_median_j is not None) for record in good)
    shares = [[block["busy_frac"] for block in record.blocks if block.get("busy_frac") is not None] for record in good]
    return {
        "records": len(good),
        "failed": sum(record.status == "failed" for record in records),
        "operators": len({record.key_digest for record in good}),
        "there_again": sum(count - 1 for count in times.values()),
        "with_busy_share": sum(map(bool, shares)),
        "least_highest_busy_frac": min((max(one) for one in shares if one), default=None),
        "with_energy_but_no_waiting_power": sum(
            record.energy_median_j is not None and record.base_w is None for record in good
        ),
    }


def windows_of(folder: Path) -> dict[str, Any] | None:
    """Return each worker's windows in the campaign's own run, and how many of them overlap; None without a GPU."""
    from gpuledger.services.runs import load

    ledgers = sorted((folder / "out").glob("campaign-*.ledger"))
    if not ledgers:
        return None
    rank = load(ledgers[-1]).rank()
    by_worker: dict[str, list[tuple[int, int]]] = {}
    for row in rank.table("windows").to_pylist():
        words = (row["name"] or "").split()
        if words[1:2] == ["worker"] and row["device_idx"] == 0:
            by_worker.setdefault(words[2].rstrip(":"), []).append((row["start_ns"], row["end_ns"]))
    overlaps = sum(after[0] < before[1] for spans in by_worker.values() for before, after in pairwise(sorted(spans)))
    return {
        "operators_by_worker": {worker: len(spans) for worker, spans in sorted(by_worker.items())},
        "overlapping": overlaps,
        "sampled_cards": len({row["device_idx"] for row in rank.table("samples").select(["device_idx"]).to_pylist()}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("ray-campaign"))
    parser.add_argument("--model", action="append", help="NAME@INPUT; repeated, each is one")
    parser.add_argument("--mode", default="inference")
    parser.add_argument("--device")
    parser.add_argument("--workers", type=int, default=1, help="on a processor")
    parser.add_argument("--time-only", action="store_true")
    parser.add_argument("--seconds", type=float, default=300.0, help="then it is ended")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    database = open_database(str(options.folder / "ray.db"))
    results = {"environment": describe_environment(options.device or "cuda:0"), "campaign": run(options, database)}
    write_results(options.out, results)
    results |= {"kept": kept(database.records()), "windows": windows_of(options.folder)}
    place = options.folder / "out" / "compare.json"
    if place.exists():
        results["compare"] = json.loads(place.read_text(encoding="utf-8"))
    write_results(options.out, results)
    print(json.dumps({name: results[name] for name in ("campaign", "kept", "windows")}, indent=1))


if __name__ == "__main__":
    main()
