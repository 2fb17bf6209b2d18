"""``gpuledger check --no-growth``: exit status 5 for memory that grows, and for what was not measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from synthetic import make_run

from gpuledger.cli.main import main
from gpuledger.model.run import read_run, write_table
from gpuledger.model.schema.tables import TABLES

MIB = 1 << 20


def run_with(place: Path, step_bytes: int, steps: int) -> Path:
    """Return a run in which the allocated bytes grow by ``step_bytes`` in each step."""
    make_run(place, blocks=300)
    number = np.arange(1, steps + 1)
    allocated = 100 * MIB + step_bytes * number
    columns = {
        **{"device_idx": np.zeros(steps, int), "step": number, "t_ns": number, "allocated_bytes": allocated},
        **{"reserved_bytes": allocated, "peak_allocated_bytes": allocated + 50 * MIB, "blocks": number},
        **{"allocations": number * 9, "retries": number * 0, "host_bytes": number * 0 + MIB},
    }
    names = TABLES["step_memory"].column_names
    write_table(read_run(place).ranks[0].directory, pa.table([columns[name] for name in names], names), "step_memory")
    return place


def check(place: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["check", str(place), "--no-growth", *words])


def test_growth_fails_and_says_when_memory_ends(tmp_path: Path) -> None:
    result = check(run_with(tmp_path / "a.ledger", 8 * MIB, 80))
    assert result.exit_code == 5
    assert "+8.0 MiB per step since step 1" in result.output
    assert "out of memory in about" in result.output


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_no_growth_passes(tmp_path: Path, words: tuple[str, ...]) -> None:
    result = check(run_with(tmp_path / "a.ledger", 0, 80), *words)
    assert result.exit_code == 0
    assert json.loads(result.output)["ok"] if words else "does not grow" in result.output


@pytest.mark.parametrize("steps", [0, 23])
def test_what_was_not_measured_does_not_pass(tmp_path: Path, steps: int) -> None:
    result = check(run_with(tmp_path / "a.ledger", 0, steps))
    assert result.exit_code == 5
    assert f"at the end of {steps} steps, and 24 are needed" in result.output
