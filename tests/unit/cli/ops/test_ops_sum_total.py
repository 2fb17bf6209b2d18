"""``ops sum`` prints a total only if most calls are measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")

from click.testing import CliRunner

from gpuledger.cli.main import main
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.operator_database import open_database
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.workloads.workload import Use, Workload

HERE = Environment("NVIDIA H200", "570.1", "2.13.0", "13.0", {"cache_bytes": 50 << 20})
KEYS = [OperatorKey("aten.relu.default", ({"shape": [size], "dtype": "float32", "stride": [1]},)) for size in (8, 9)]


@pytest.mark.parametrize(("missing", "is_total"), [(5, True), (6, False)])
def test_without_95_percent_of_the_calls_there_is_no_total(missing: int, is_total: bool, tmp_path: Path) -> None:
    database, workload = str(tmp_path / "a.db"), str(tmp_path / "w.workload.json")
    with open_database(database) as made:
        made.put_keys(KEYS)
        made.put_environment(HERE)
        made.put_records([Record(KEYS[0].digest, HERE.digest, {"mode": "rotating"}, 10e3, 9e3, 11e3)])
    Workload("w", "inference", (Use(KEYS[0], 100 - missing), Use(KEYS[1], missing))).write(Path(workload))
    run = CliRunner().invoke
    text = run(main, ["ops", "sum", workload, "--database", database])
    (document,) = json.loads(run(main, ["ops", "sum", workload, "--database", database, "--json"]).stdout)
    assert text.exit_code == 0, text.output
    assert f"measured: {100 - missing}.0 % of the calls" in text.stdout
    assert ("no total, because less than 95 % of the calls are measured" in text.stdout) == (not is_total)
    assert document["is_total"] == is_total
    assert document["busy_ns"] == pytest.approx((100 - missing) * 10e3)
