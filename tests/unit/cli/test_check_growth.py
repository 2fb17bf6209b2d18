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


def on_the_host(place: Path, steps: int, census_at: int | None) -> Path:
    """Return a run without a GPU, with a steady host memory and one census at most."""
    run_with(place, 0, steps)
    rank = read_run(place).ranks[0]
    table = rank.table("step_memory")
    column = table.column_names.index("device_idx")
    write_table(rank.directory, table.set_column(column, "device_idx", pa.array(np.full(steps, -1))), "step_memory")
    found = [] if census_at is None else [{"step": census_at, "took_ns": 1, "is_complete": True}]
    return with_facts(place, censuses=found, time_steps=[4, 6])


@pytest.mark.parametrize(("census_at", "needed"), [(21, 44), (60, 90), (None, 70)])
def test_a_program_without_a_gpu_needs_more_steps(census_at: int | None, needed: int, tmp_path: Path) -> None:
    short = check(on_the_host(tmp_path / "short.ledger", needed - 1, census_at))
    assert short.exit_code == 5
    assert f"at the end of {needed - 1} steps, and {needed} are needed" in short.output
    assert "too short to show whether memory grows" in short.output
    enough = check(on_the_host(tmp_path / "enough.ledger", needed, census_at))
    assert (enough.exit_code, "does not grow" in enough.output) == (0, True)


@pytest.mark.parametrize("steps", [5, 20])
def test_before_the_first_census_the_number_is_that_of_a_program_with_one(steps: int, tmp_path: Path) -> None:
    """Steps 4 to 6 are measured, one more has lines, ten are not measured, and the census is four steps later."""
    result = check(on_the_host(tmp_path / "a.ledger", steps, None))
    assert (result.exit_code, "and 44 are needed" in result.output) == (5, True)
    assert "could not be counted" not in result.output


def test_without_a_census_that_was_due_the_message_says_why_more_steps_are_needed(tmp_path: Path) -> None:
    result = check(on_the_host(tmp_path / "a.ledger", 50, None))
    text = " ".join(result.output.split())
    assert "and 70 are needed because live tensors could not be counted at the end of a step" in text


def check(place: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["check", str(place), "--no-growth", *words])


def test_growth_fails_and_says_when_memory_ends(tmp_path: Path) -> None:
    result = check(run_with(tmp_path / "a.ledger", 8 * MIB, 80))
    assert result.exit_code == 5
    assert "+8.0 MiB per step since step 1" in result.output
    assert "out of memory in about" in result.output


def test_a_program_that_has_run_out_of_memory_has_no_steps_until_then(tmp_path: Path) -> None:
    run = with_facts(run_with(tmp_path / "a.ledger", 8 * MIB, 80), exit_error="OutOfMemoryError")
    result = check(run)
    text = " ".join(result.output.split())
    assert "until step 80; then the program ran out of memory" in text
    assert "out of memory in about" not in text
    shown = json.loads(check(run, "--json").stdout.partition("\ngpuledger")[0])
    assert [one["has_ended"] for one in shown["growth"]] == [True]


@pytest.mark.parametrize(("bound", "exit_code"), [(200, 0), (10**9, 5)])
def test_a_container_that_is_full_before_memory_ends_passes(bound: int, exit_code: int, tmp_path: Path) -> None:
    run = run_with(tmp_path / "a.ledger", 8 * MIB, 80)
    holder = {"kind": "deque", "name": "queue", "length": 40, "more": 20, "content": "tensor", "bound": bound}
    first = {"step": 20, "took_ns": 1, "is_complete": True}
    last = {**first, "step": 40, "holder": {**holder, "element_bytes": 8 * MIB}}
    result = check(with_facts(run, censuses=[first, last]))
    text = " ".join(result.output.split())
    assert result.exit_code == exit_code
    assert f"held by deque queue, 40 of at most {bound:,} elements of tensors" in text
    assert ("memory grows, but not without limit" in text) == (exit_code == 0)
    assert ("grows until queue is full, in about 120 steps" in text) == (exit_code == 0)
    shown = json.loads(check(run, "--json").stdout.partition("\ngpuledger")[0])
    assert (shown["ok"], shown["growth"][0]["holder"]["bound"]) == (exit_code == 0, bound)


@pytest.mark.parametrize(("unused_kib", "is_told"), [(8 * 1024 - 4, True), (2 * 1024, False)])
def test_elements_with_few_values_in_large_storages_are_told(unused_kib: int, is_told: bool, tmp_path: Path) -> None:
    """Such as the first row of each batch, which keeps the batch."""
    run = run_with(tmp_path / "a.ledger", 8 * MIB, 80)
    holder = {"kind": "list", "name": "rows", "length": 40, "more": 20, "content": "tensor", "element_bytes": 8 * MIB}
    first = {"step": 20, "took_ns": 1, "is_complete": True}
    last = {**first, "step": 40, "holder": {**holder, "element_unused_bytes": unused_kib << 10}}
    text = " ".join(check(with_facts(run, censuses=[first, last])).output.split())
    assert "held by list rows, 40 elements of tensors" in text
    said = "each with 4.0 KiB of values in a storage of 8.0 MiB (keep a clone() instead)"
    assert (said in text) == is_told
    assert ("clone()" in text) == is_told


def with_facts(run: Path, **facts: object) -> Path:
    """Return a run with other facts in the manifest of its rank."""
    place = read_run(run).ranks[0].directory / "manifest.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | facts))
    return run


@pytest.mark.parametrize(("last_tensors", "exit_code"), [(200, 5), (120, 0)])
def test_tensors_that_a_list_keeps_fail_though_host_memory_is_steady(
    last_tensors: int, exit_code: int, tmp_path: Path
) -> None:
    first = {"step": 20, "took_ns": 1, "is_complete": True}
    kept = {"kind": "list", "name": "predictions", "length": 120, "more": 100, "content": "tensor"}
    last = {**first, "step": 120, "kept": {**kept, "element_bytes": 16 << 10, "element_tensors": 1.0}}
    counts = [(step, 9000 + min(step, last_tensors)) for step in range(10, 201)]
    run = with_facts(on_the_host(tmp_path / "a.ledger", 200, 20), censuses=[first, last], tensor_counts=counts)
    result = check(run)
    assert result.exit_code == exit_code
    text = " ".join(result.output.split())
    assert ("host memory: +16.0 KiB per step since step 20, 2.8 MiB until step 200" in text) == (exit_code == 5)
    assert ("held by list predictions, 120 elements of tensors" in text) == (exit_code == 5)


@pytest.mark.parametrize(("kept_bytes", "is_named"), [(16 << 10, True), (4 << 10, False)])
def test_the_list_that_keeps_what_grows_is_named_though_memory_grew_faster_at_first(
    kept_bytes: int, is_named: bool, tmp_path: Path
) -> None:
    """Pages touched for the first time between two censuses hid from these what the list gained."""
    run = on_the_host(tmp_path / "a.ledger", 200, 20)
    rank = read_run(run).ranks[0]
    table, at = rank.table("step_memory"), TABLES["step_memory"].column_names.index("host_bytes")
    host = pa.array(100 * MIB + (30 << 10) * np.arange(1, 201))
    write_table(rank.directory, table.set_column(at, "host_bytes", host), "step_memory")
    kept = {"kind": "list", "name": "predictions", "length": 120, "more": 100, "content": "tensor"}
    group = {"device_idx": -1, "kind": "leaf"}
    first = {"step": 20, "took_ns": 1, "is_complete": True, "groups": [{**group, "tensors": 20, "bytes": MIB}]}
    last = {**first, "step": 120, "kept": {**kept, "element_bytes": kept_bytes, "element_tensors": 1.0}}
    last["groups"] = [{**group, "tensors": 120, "bytes": 3 * MIB}]
    counts = [(step, 9000 + step) for step in range(10, 201)]
    result = check(with_facts(run, censuses=[first, last], tensor_counts=counts))
    text = " ".join(result.output.split())
    assert result.exit_code == 5
    assert "host memory: +30.0 KiB per step" in text
    assert ("held by list predictions, 120 elements of tensors" in text) == is_named


def in_stairs(place: Path, steps: int, each_bytes: int) -> Path:
    """Return a run on a GPU in which each of the evaluations, 40 steps apart, keeps memory."""
    run_with(place, 0, steps)
    rank = read_run(place).ranks[0]
    table = rank.table("step_memory")
    number = table.column("step").to_numpy()
    allocated = pa.array(100 * MIB + each_bytes * (number // 40))
    column = table.column_names.index("allocated_bytes")
    write_table(rank.directory, table.set_column(column, "allocated_bytes", allocated), "step_memory")
    return place


@pytest.mark.parametrize(("length", "exit_code"), [(70, 5), (10, 0), (None, 0)])
def test_memory_that_each_of_few_evaluations_keeps_fails_if_it_is_known_what_grows(
    length: int | None, exit_code: int, tmp_path: Path
) -> None:
    """Eight steps up can be those of a model that becomes larger: a census says that a list holds them, or another."""
    first = {"step": 20, "took_ns": 1, "is_complete": True}
    holder = {"kind": "list", "name": "predictions", "length": length, "more": length, "content": "tensor"}
    last = {**first, "step": 302, "holder": length and {**holder, "element_bytes": MIB}}
    run = with_facts(in_stairs(tmp_path / "a.ledger", 330, 10 * MIB), censuses=[first, last])
    result = check(run)
    assert result.exit_code == exit_code
    assert ("held by list predictions" in result.output) == (exit_code == 5)


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_no_growth_passes(tmp_path: Path, words: tuple[str, ...]) -> None:
    result = check(run_with(tmp_path / "a.ledger", 0, 80), *words)
    assert result.exit_code == 0
    assert json.loads(result.output)["ok"] if words else "does not grow" in result.output


def of_calls(place: Path) -> Path:
    """Make the steps of a run calls of a model, which nothing counts until the program ends."""
    rank = read_run(place).ranks[0]
    table = rank.table("steps")
    column = table.column_names.index("kind")
    kinds = pa.array(["call"] * table.num_rows).dictionary_encode()
    write_table(rank.directory, table.set_column(column, "kind", kinds), "steps")
    return place


@pytest.mark.parametrize(
    ("calls", "exit_code"),
    [
        ([[1, 1, 4, 128], [2, 80, 4, 1]], 0),  # the cache of a text that is not complete
        ([[1, 1, 4, 128], [2, 40, 4, 1], [41, 41, 4, 128], [42, 80, 4, 1]], 5),  # it stays when the next one begins
        ([[1, 80, 4, 128]], 5),
    ],
)
def test_what_a_text_needs_while_it_is_generated_is_no_growth(
    calls: list[list[int]], exit_code: int, tmp_path: Path
) -> None:
    run = of_calls(run_with(tmp_path / "a.ledger", MIB, 80))
    manifest = read_run(run).ranks[0].directory / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"calls": calls}))
    assert check(run).exit_code == exit_code


def test_calls_that_were_not_counted_are_not_said_to_be_without_growth(tmp_path: Path) -> None:
    enough = check(of_calls(run_with(tmp_path / "a.ledger", 0, 80)))
    text = " ".join(enough.output.split())
    assert (enough.exit_code, "does not grow in the first 80 calls of the model, the only ones" in text) == (0, True)
    few = check(of_calls(run_with(tmp_path / "b.ledger", 0, 23)))
    text = " ".join(few.output.split())
    assert (few.exit_code, "until the measurements end, here 23, and 24 steps are needed" in text) == (5, True)


@pytest.mark.parametrize("steps", [0, 23])
def test_what_was_not_measured_does_not_pass(tmp_path: Path, steps: int) -> None:
    result = check(run_with(tmp_path / "a.ledger", 0, steps))
    assert result.exit_code == 5
    assert f"at the end of {steps} steps, and 24 are needed" in result.output


@pytest.mark.parametrize(("step_bytes", "is_told"), [(MIB, True), (MIB // 8, False)])
def test_host_memory_that_rises_without_a_known_reason_is_told(step_bytes: int, is_told: bool, tmp_path: Path) -> None:
    """Such as a library that keeps memory: no tensor and no container shows it. A little of it is noise."""
    path = on_the_host(tmp_path / "a.ledger", 120, 21)
    with_facts(path, censuses=[{"step": step, "took_ns": 1, "is_complete": True} for step in (21, 60)])
    directory = read_run(path).ranks[0].directory
    table = read_run(path).ranks[0].table("step_memory")
    host = pa.array(300 * MIB + step_bytes * np.arange(1, 121))
    column = table.column_names.index("host_bytes")
    write_table(directory, table.set_column(column, table.schema.field(column), host), "step_memory")
    result = check(path)
    text = " ".join(result.output.split())
    assert result.exit_code == 0
    assert ("but host memory rises by 1.0 MiB per step" in text) == is_told
    assert ("memory does not grow" in text) != is_told
