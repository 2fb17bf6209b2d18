"""The accuracy of predictions: what was held out was not learned from, and its errors are those of the predictions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

from click.testing import CliRunner
from libraries import needs

from gpuledger.analyze.operator_work.formulas import work_of
from gpuledger.cli.main import main
from gpuledger.cli.ops.accuracy import _lines
from gpuledger.errors import EmptyRunError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.operator_database import open_database
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.predict import accuracy
from gpuledger.ops.predict.accuracy import Accuracy, validate
from gpuledger.ops.predict.features import shape_family
from gpuledger.ops.predict.fit import LEAST_EXAMPLES, Example
from gpuledger.ops.predict.roof import Roof
from gpuledger.ops.totals.cost import Cost
from gpuledger.ops.workloads.describe_json import tensor
from gpuledger.ops.workloads.workload import Use, Workload

pytestmark = needs("sklearn")

ROOF = Roof("card", {"float32": 60.0}, 4.8e3, 132, 700.0, 50 << 20, "datasheet")


def product(m: int, k: int, n: int) -> OperatorKey:
    return OperatorKey("aten.mm.default", (tensor((m, k), "float32"), tensor((k, n), "float32")))


def workload_of(keys: list[OperatorKey], count: int = 3) -> Workload:
    return Workload("held", "inference", tuple(Use(key, count) for key in keys), (), {"device": "cpu", "notes": []})


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    random = np.random.default_rng(0)
    keys = [product(*(int(2 ** random.uniform(5, 11)) for _ in range(3))) for _ in range(60)]
    times_ns = [ROOF.time_ns(key, work_of(key)) / 0.7 for key in keys]
    return [Example(key, False, ns, 350.0, shape_family(key)) for key, ns in zip(keys, times_ns, strict=True)]


@pytest.fixture(scope="module")
def found(examples: list[Example]) -> Accuracy:
    keys = [one.key for one in examples]
    first = {key.digest for key in keys[:30]}
    parts = {"first": first, "others": {key.digest for key in keys[30:]}}
    return validate(examples, ROOF, [workload_of(keys[:5])], folds=2, parts=parts)


def test_every_operator_is_judged_once_and_by_every_part_it_is_of(found: Accuracy) -> None:
    assert found.unseen.count == sum(one.count for one in found.by_type) == 60
    assert [(one.name, one.count) for one in found.by_part] == [("first", 30), ("others", 30)]
    together = sum(one.mean_frac * one.count for one in found.by_part) / 60
    assert together == pytest.approx(found.unseen.mean_frac)
    assert found.unseen.median_frac < 0.15
    assert found.unseen.worst_frac == max(one.worst_frac for one in found.by_part) > found.unseen.p90_frac


def test_a_model_is_held_out_with_all_families_of_shapes_that_it_has(
    found: Accuracy, examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [(one.name, one.covered_frac) for one in found.models] == [("held", 1.0)]
    assert abs(found.models[0].time_frac) < 0.2
    seen: list[set[str]] = []

    def spied(inside: list[Example], asked: list[Example], roof: Roof) -> list[Cost]:
        seen.append({one.group for one in inside} & {one.group for one in asked})
        return [Cost(one.time_ns, one.time_ns, one.time_ns) for one in asked]

    monkeypatch.setattr(accuracy, "_costs", spied)
    again = replace(examples[0], key=product(4096, *examples[0].key.inputs[1]["shape"]))  # another batch of one layer
    validate([*examples, again], ROOF, [workload_of([examples[0].key])], folds=2)
    assert seen[:2] == [set(), set()]
    assert seen[-1] == set()


def test_what_is_beyond_the_range_is_told_by_how_far_as_well(found: Accuracy) -> None:
    steps, beyond = found.beyond_by_size, found.beyond
    assert beyond is not None
    assert len(steps) > 1
    assert sum(one.count for one in steps) == beyond.count == 12
    assert sum(one.mean_frac * one.count for one in steps) / 12 == pytest.approx(beyond.mean_frac)
    assert steps[0].name == "1 to 2 times the range"


def test_few_examples_are_refused(examples: list[Example]) -> None:
    with pytest.raises(EmptyRunError, match="at least"):
        validate(examples[:6], ROOF)
    with pytest.raises(EmptyRunError, match="must remain"):
        validate(examples[:LEAST_EXAMPLES], ROOF)  # enough to learn from, and not when some are held out


def test_a_table_has_a_row_for_each_type_and_each_model(found: Accuracy) -> None:
    text = "\n".join(_lines(found))
    assert all(name in text for name in ("unseen operators", "beyond the range", "mm", "held"))


def test_the_command_judges_a_database(
    examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy, "FOLDS", 2)
    place = str(tmp_path / "x.db")
    where = Environment("NVIDIA H200", "570.1", "2.13.0", "13.0", {})
    with open_database(place) as database:
        database.put_environment(where)
        database.put_keys(one.key for one in examples[:40])
        database.put_records(
            Record(one.key.digest, where.digest, {"mode": "rotating"}, one.time_ns, one.time_ns, one.time_ns)
            for one in examples[:40]
        )
    result = CliRunner().invoke(main, ["ops", "accuracy", "--database", place, "--json"])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["unseen"]["count"] == 40
