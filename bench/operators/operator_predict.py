"""Measures the error of predictions from a database, and how long one takes.

Usage: python bench/operators/operator_predict.py --database h200.db --workload a.workload.json --out FILE
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

from gpuledger.ops.database.operator_database import open_database
from gpuledger.ops.predict.accuracy import hold_out, validate
from gpuledger.ops.predict.choose import open_environment_records, roof_of_records
from gpuledger.ops.predict.fit import fit
from gpuledger.ops.predict.predict import FittedPredictor
from gpuledger.ops.workloads.workload import read_workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--database", default="operators.db")
    parser.add_argument("--card")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workload", type=Path, action="append", default=[])
    parser.add_argument("--batch", type=int, default=1000, help="operators predicted at once")
    options = parser.parse_args()
    shelf = open_environment_records(open_database(options.database), options.card)
    examples, roof = shelf.examples, roof_of_records(shelf)
    started_s = time.perf_counter()
    predictor = FittedPredictor(fit(examples, roof))
    fitted_s = time.perf_counter() - started_s
    asked = [examples[place % len(examples)] for place in range(options.batch)]
    keys, hot = [one.key for one in asked], [one.is_hot for one in asked]
    predictor.costs(keys[:10], hot[:10])
    spans_s, busy_s = [], []
    for _ in range(5):
        started_s, processor_s = time.perf_counter(), time.process_time()
        predictor.costs(keys, hot)
        spans_s.append(time.perf_counter() - started_s)
        busy_s.append(time.process_time() - processor_s)
    results: dict[str, Any] = {
        "environment": describe_environment(options.device),
        "database_card": shelf.environment.to_json(),
        "fit_s": fitted_s,
        "batch": options.batch,
        "ms_an_operator": sorted(spans_s)[2] / options.batch * 1e3,
        "processor_ms_an_operator": sorted(busy_s)[2] / options.batch * 1e3,
    }
    write_results(options.out, results)
    print(f"{results['ms_an_operator']:.4f} ms an operator", flush=True)
    used = {use.key.digest for path in options.workload for use in read_workload(path).uses}
    others = {one.key.digest for one in examples} - used
    parts = {"of the workloads": used, "of none of them": others} if used and others else {}
    card = validate(examples, roof, parts=parts)
    results["card"] = asdict(card)
    write_results(options.out, results)
    print(f"{card.unseen}; {card.beyond}", flush=True)
    found: list[dict[str, Any]] = []
    for path in options.workload:  # each takes a fit: a script that is ended has left the others
        held = hold_out(read_workload(path), examples, roof)
        found += [] if held is None else [asdict(held)]
        write_results(options.out, {**results, "card": {**results["card"], "models": found}})
        print(held, flush=True)


if __name__ == "__main__":
    main()
