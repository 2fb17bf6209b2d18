"""Divides the energy of recorded runs by today's power figures, and compares with parts that were measured alone.

Usage: python bench/energy/joules_again.py RUN.ledger …
           --alone bench/energy/results/h200/time_energy_halves.json --out FILE
A recording keeps the watts it was posted with; the tables are fitted anew whenever the database grows. Runs come from
bench/energy/time_energy.py --keep.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

from gpuledger import load
from gpuledger.analyze.operator_work.power_model import model_to_json
from gpuledger.analyze.step.energy import break_down_energy
from gpuledger.model.run import Rank
from gpuledger.ops.predict.power import find_power_model
from gpuledger.ops.predict.watts import shipped


def told_again(rank: Rank) -> dict[str, Any]:
    """Return a rank's joules a step, and whose they are, by the watts that ship with the package."""
    card = rank.manifest.devices[0].name
    table, model = shipped(card), find_power_model(card)
    if table is None or model is None:
        raise SystemExit(f"{card}: no watts of it ship")
    manifest = replace(rank.manifest, measured_watts=table.to_json(), power_model=model_to_json(model))
    found = break_down_energy(Rank(rank.number, rank.directory, manifest))
    if found is None:
        raise SystemExit(f"{rank.directory}: no energy pass")
    joules: dict[str, float] = {}
    for one in found.accounts:
        joules[one.module] = joules.get(one.module, 0.0) + one.energy_j
    return {"card": card, "step_energy_j": found.step_energy_j, "method": found.method, "modules_j": joules}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--alone", type=Path, help="what bench/energy/time_energy.py found of the halves")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found = {run.stem: told_again(load(run).rank(0)) for run in options.runs}
    results: dict[str, Any] = {"environment": describe_environment("cpu"), "runs": found}
    if options.alone:
        halves = json.loads(options.alone.read_text(encoding="utf-8"))["halves"]["compared"]
        results["off_frac"] = {
            run: {half: one["modules_j"][half] / alone["alone_j"] - 1 for half, alone in halves.items()}
            for run, one in found.items()
            if set(halves) <= set(one["modules_j"])
        }
        print(json.dumps(results["off_frac"], indent=1))
    write_results(options.out, results)


if __name__ == "__main__":
    main()
