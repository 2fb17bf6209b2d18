"""What the modules of a recorded run take on another GPU, and those of a workload."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from folders import ROOT

from gpuledger.cli.main import main
from gpuledger.errors import UsageError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.predict.modules import OUTSIDE, _scaled_ns, modules_of_lines, modules_of_run
from gpuledger.ops.predict.roof import FLOOR_NS, roof_of_card
from gpuledger.ops.totals.cost import MEASURED, Cost
from gpuledger.ops.totals.sum import OperatorLine
from gpuledger.ops.workloads.workload import Use
from gpuledger.services.runs import open_run
from gpuledger.simulate.catalogue import find_card

H200, A100 = (roof_of_card(find_card(name)) for name in ("h200", "a100-80gb"))
UNKNOWN = math.nan


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "tests" / "recordings" / "passes" / "halves.ledger", tmp_path / "halves.ledger"))


@pytest.mark.parametrize(
    ("flops", "moved_bytes", "numbers", "ratio"),
    [
        (1e13, 1e6, "bfloat16", 989 / 312),
        (1e6, 1e10, "float32", 4800 / 2039),
        (UNKNOWN, UNKNOWN, None, 4800 / 2039),
    ],
)
def test_a_large_kernel_scales_with_what_limits_it(
    flops: float, moved_bytes: float, numbers: str | None, ratio: float
) -> None:
    there_ns = _scaled_ns(20e6, flops, moved_bytes, numbers, H200, A100)
    assert there_ns / 20e6 == pytest.approx(ratio, rel=0.01)


def test_an_empty_kernel_takes_as_long_on_any_gpu_and_no_gpu_differs_from_itself() -> None:
    assert _scaled_ns(FLOOR_NS, UNKNOWN, UNKNOWN, None, H200, A100) == pytest.approx(FLOOR_NS)
    assert _scaled_ns(5e5, 1e12, 1e8, "float32", A100, A100) == pytest.approx(5e5)


def test_modules_of_a_run_on_its_own_gpu_take_what_was_recorded(run: Path) -> None:
    found = modules_of_run(open_run(run).ranks[0], "h200")
    assert {one.module for one in found.modules} >= {"copies", "products"}
    for one in found.modules:
        assert one.recorded_ns is not None
        assert one.time_ns == pytest.approx(one.recorded_ns)


def test_the_command_prints_a_row_for_each_module_of_a_run(run: Path) -> None:
    asked = ["ops", "predict", str(run), "--gpu", "a100-80gb"]
    text = CliRunner().invoke(main, [*asked, "--by", "module"])
    document = json.loads(CliRunner().invoke(main, [*asked, "--by", "module", "--json"]).stdout)
    assert text.exit_code == 0, text.output
    assert "from NVIDIA H200 to NVIDIA A100 80GB, per step" in text.stdout
    rows = {one["module"]: one for one in document["modules"]}
    assert 2 < rows["copies"]["time_ns"] / rows["copies"]["recorded_ns"] < 2.4
    refused = CliRunner().invoke(main, asked)
    assert (refused.exit_code, "--by module" in refused.stderr) == (2, True)


def test_a_gpu_that_is_not_listed_is_refused(run: Path) -> None:
    with pytest.raises(UsageError):
        modules_of_run(open_run(run).ranks[0], "no-such-gpu")


def test_modules_of_a_workload_add_up_to_its_operators() -> None:
    key = OperatorKey("aten.relu.default", ({"shape": [8], "dtype": "float32", "stride": [1]},))
    cost = Cost(10.0, 9.0, 11.0, 2.0)
    lines = [
        OperatorLine(Use(key, 5, (("a", 3), ("b", 2))), cost, MEASURED, MEASURED),
        OperatorLine(Use(key, 1), cost, MEASURED, MEASURED),
    ]
    found = {one.module: (one.time_ns, one.energy_j) for one in modules_of_lines(lines)}
    assert found == {"a": (30.0, 6.0), "b": (20.0, 4.0), OUTSIDE: (10.0, 2.0)}
