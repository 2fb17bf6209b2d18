"""Replays recorded trainings with the setting under which they were recorded a second time, as ``what-if`` does.

Needs no GPU: some trainings of the grid were recorded with the default settings of the allocator and with another one
(tests/data/h200/estimate_truth). Each of the two recordings is replayed with the setting of the other one, and compared
with what the GPU reserved there. It is also replayed with its own: the addresses that the driver gave are not used, so
this shows what depends on them.

Usage: python bench/estimate/other_settings.py --out bench/estimate/results/h200/other_settings.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import ROOT, describe_environment, write_results

from gpuledger.analyze.posting.posting import post_rank
from gpuledger.model.journal.reading import read_journal
from gpuledger.model.run import Rank
from gpuledger.simulate.estimate.what_if import rank_settings

TRUTH = Path(__file__).parent / "results" / "h200" / "estimate_truth.json"
STREAMS = ROOT / "tests" / "data" / "h200" / "estimate_truth"


def pairs(streams: Path) -> list[tuple[str, str]]:
    """Return the trainings that were recorded twice: with the default settings, and with another one."""
    names = sorted(place.stem for place in streams.glob("*.npz"))
    found = []
    for name in names:
        shorter = [one for one in names if name.startswith(f"{one}-")]
        if shorter and setting_of(streams, name) and not setting_of(streams, max(shorter, key=len)):
            found.append((max(shorter, key=len), name))
    return found


def setting_of(streams: Path, name: str) -> str:
    """Return the setting of the allocator with which a training was recorded; empty for the default."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "00000.npz").write_bytes((streams / f"{name}.npz").read_bytes())
        facts = read_journal(Path(directory)).facts
    return str(facts["allocator_settings"].get("PYTORCH_CUDA_ALLOC_CONF", ""))


def recorded_and_replayed(streams: Path, name: str, settings: tuple[str, ...]) -> tuple[int, dict[str, int]]:
    """Return the peak of reserved bytes that the GPU had, and those of a replay with each setting."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "one.ledger" / "rank-0"
        (place / "journal").mkdir(parents=True)
        (place / "journal" / "00000.npz").write_bytes((streams / f"{name}.npz").read_bytes())
        rank = Rank(0, place, post_rank(place))
        recorded = max(rank.table("counters").column("peak_reserved_bytes").to_pylist())
        outcomes = rank_settings(rank, 0, settings)
    return recorded, {one.alloc_conf: one.peak_reserved_bytes for one in outcomes}


def compare(streams: Path, default: str, changed: str) -> list[dict[str, Any]]:
    """Return what both recordings of a training give with both settings."""
    settings = ("", setting_of(streams, changed))
    rows = []
    found = {
        setting: recorded_and_replayed(streams, name, settings)
        for setting, name in zip(settings, (default, changed), strict=True)
    }
    for recorded_with in settings:
        for setting in settings:
            recorded_bytes, replayed_bytes = found[setting][0], found[recorded_with][1][setting]
            rows.append(
                {
                    "training": default,
                    "recorded_with": recorded_with,
                    "setting": setting,
                    "replayed_bytes": replayed_bytes,
                    "recorded_bytes": recorded_bytes,
                    "error_bytes": replayed_bytes - recorded_bytes,
                }
            )
    return rows


def main() -> None:
    """Compare every training that was recorded twice and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=Path, default=STREAMS)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rows = [row for default, changed in pairs(given.streams) for row in compare(given.streams, default, changed)]
    for row in rows:
        print(row["training"], repr(row["recorded_with"]), "->", repr(row["setting"]), row["error_bytes"])
    truth = json.loads(TRUTH.read_text(encoding="utf-8"))
    results = {"recorded_on": truth["environment"], "replayed_on": describe_environment("cpu"), "replays": rows}
    write_results(given.out, results)


if __name__ == "__main__":
    main()
