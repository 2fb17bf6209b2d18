"""Repeated runs, and groups of them: two groups of one program do not differ, a changed program does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from folders import RECORDINGS
from programs import TRAIN, write_script
from quick import recorded as run_recorded
from synthetic_work import load_timed

from gpuledger.analyze.compare.diff import diff_runs
from gpuledger.analyze.compare.group_diff import MODULE, diff_groups
from gpuledger.cli.main import main
from gpuledger.errors import UsageError
from gpuledger.model.imported import rows_to_table
from gpuledger.model.manifest import read_json
from gpuledger.model.run import Run, read_run, write_table
from gpuledger.model.run_directory import write_json

REPEATS = RECORDINGS / "repeats"
"""Six runs of a program on two cores, the first three beside other processes (tools/record_repeats.py)."""


def recorded(name: str) -> list[Run]:
    return [read_run(REPEATS / f"{name}-{number}.ledger") for number in (1, 2, 3)]


def names(*paths: Path) -> str:
    return ",".join(map(str, paths))


def ask(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def constant(value: float, _step: int) -> float:
    return value


def stretched(run: Run, place: Path, by: Callable[[int], float], *, steps: Callable[[int], float] | None = None) -> Run:
    """Return a copy of a run whose profiled spans take ``by(step)`` times as long, and its steps ``steps(step)``."""
    shutil.copytree(run.path, place)
    copy = read_run(place)
    for name, factor in (("spans", by), ("steps", steps or by)):
        table = copy.rank(0).table(name)
        start, end, numbers = (table[column].to_pylist() for column in ("start_ns", "end_ns", "step"))
        later = [one + round((two - one) * factor(step)) for one, two, step in zip(start, end, numbers, strict=True)]
        at = table.column_names.index("end_ns")
        table = table.set_column(at, table.schema.field(at), [later])
        shutil.rmtree(place / "rank-0" / name)
        write_table(place / "rank-0", table, name)
    return read_run(place)


def timed(place: Path, name: str, *, profiled: int = 3, host: bool = False) -> Run:
    """Return a run on a GPU, or on the CPU, with two or three profiled steps, and ten steps after them."""
    run = load_timed(place / f"{name}.ledger", blocks=100, modules=4, spans=12, host=host)
    spans, steps = (run.rank(0).table(table).to_pylist() for table in ("spans", "steps"))
    if profiled == 3:
        spans += [row | {"step": 6} for row in spans if row["step"] == 7 and row["kind"] != "phase"]
    steps += [row | {"step": 10 + number} for number in range(10) for row in steps if row["step"] == 5]
    for table, rows in (("spans", spans), ("steps", steps)):
        shutil.rmtree(run.path / "rank-0" / table)
        write_table(run.path / "rank-0", rows_to_table(table, rows), table)
    manifest = run.path / "rank-0" / "manifest.json"
    write_json(manifest, read_json(manifest) | {"time_steps": [9 - profiled, 8]})
    return read_run(run.path)


def test_two_groups_of_one_program_on_a_busy_machine_do_not_differ() -> None:
    diff = diff_groups(recorded("busy"), recorded("calm"))
    assert [change.name for change in diff.figures if change.is_significant] == []
    assert diff.modules
    assert not diff.is_significant
    paths = [names(*(REPEATS / f"{name}-{number}" for number in (1, 2, 3))) for name in ("busy", "calm")]
    result = ask("diff", *paths)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "no significant difference"
    assert "the host was busy" in result.stderr


@pytest.mark.parametrize("before", ["busy-1", "busy-2", "busy-3", "calm-1"])
@pytest.mark.parametrize("after", ["calm-1", "calm-2", "calm-3"])
def test_of_two_runs_of_one_program_no_time_is_said_to_differ(before: str, after: str) -> None:
    place = diff_runs(read_run(REPEATS / f"{before}.ledger"), read_run(REPEATS / f"{after}.ledger")).main
    times = [*place.time_changes(), *(one for one in place.figures if one.key[0] == "step_time_ns")]
    assert [change.key for change in times if change.is_certain] == []
    assert place.changes() == ()


def test_a_slower_program_differs_and_a_module_that_is_slower_is_named(tmp_path: Path) -> None:
    def group(name: str, base: float) -> list[Run]:
        factors = [base + number / 100 for number in (1, 2, 3)]
        return [
            stretched(timed(tmp_path, f"{name}{n}"), tmp_path / f"{name}-{n}.ledger", partial(constant, factor))
            for n, factor in enumerate(factors)
        ]

    groups = [group("a", 1.0), group("b", 2.0)]
    diff = diff_groups(*groups)
    step = next(change for change in diff.figures if change.name == "step_time_ns")
    assert step.is_significant
    assert step.interval.low > 0.9 * step.before_mean
    assert diff.modules
    assert all(change.is_significant and change.name.startswith(MODULE) for change in diff.modules)
    peak = next(change for change in diff.figures if change.name == "peak_allocated_bytes")
    assert (peak.interval.low, peak.interval.high) == (0, 0)
    document = json.loads(
        ask("diff", names(*(one.path for one in groups[0])), names(*(one.path for one in groups[1])), "--json").stdout
    )
    assert document["significant"]
    found = {one["name"]: one for one in document["figures"]}
    assert found["step_time_ns"]["low"] == step.interval.low
    assert {"before_mean", "after_mean", "delta", "low", "high", "significant"} <= found["step_time_ns"].keys()


def test_a_group_of_one_run_and_options_of_two_runs_are_refused(tmp_path: Path) -> None:
    pair = names(REPEATS / "busy-1", REPEATS / "busy-2")
    with pytest.raises(UsageError, match="at least 2 runs"):
        diff_groups(recorded("busy"), recorded("calm")[:1])
    for words in (["--html", tmp_path / "x.html"], ["--by", "module"], ["--at", "end"], ["--step", "1"]):
        assert ask("diff", pair, pair, *words).exit_code == 2
    odd = tmp_path / "a,b.ledger"
    shutil.copytree(REPEATS / "busy-1.ledger", odd)
    assert "no difference" in ask("diff", odd, tmp_path / "a,b").stdout


def test_layer_times_of_two_steps_are_not_said_to_differ(tmp_path: Path) -> None:
    for name, profiled in (("two", 2), ("three", 3)):
        before = timed(tmp_path, name, profiled=profiled)
        after = stretched(before, tmp_path / f"{name}-slow.ledger", lambda _: 3.0, steps=lambda _: 1.0)
        changes = diff_runs(before, after).main.time_changes()
        assert changes
        assert all(change.is_certain for change in changes) is (name == "three")
        text = ask("diff", before.path, after.path).stdout
        assert ("noise unknown" in text.partition("time by module")[2]) is (name == "two")


def test_a_layer_within_the_spread_of_its_steps_is_noise(tmp_path: Path) -> None:
    before = timed(tmp_path, "even")
    after = stretched(
        before, tmp_path / "uneven.ledger", lambda step: {7: 1.5, 8: 2.6}.get(step, 1.0), steps=lambda _: 1.0
    )
    assert all(change.within_noise for change in diff_runs(before, after).main.time_changes())


def test_a_load_that_lasts_while_a_program_runs_is_no_difference(tmp_path: Path) -> None:
    before = timed(tmp_path, "before", host=True)
    slow = stretched(before, tmp_path / "slow.ledger", partial(constant, 2.0))
    unequal = stretched(
        before, tmp_path / "unequal.ledger", partial(constant, 2.0), steps=lambda step: 1.0 if step > 17 else 2.0
    )
    waited = stretched(before, tmp_path / "waited.ledger", partial(constant, 2.0))
    place = waited.path / "rank-0" / "manifest.json"
    write_json(place, read_json(place) | {"cpu_wait_frac": 0.5})
    busy = {
        "The fastest steps take 50 % less than the median: the host was busy": unequal,
        "The host was busy: the program waited for a CPU 50 % of the time.": read_run(waited.path),
    }
    for note, after in {"": slow, **busy}.items():
        diff = diff_runs(before, after)
        times = [*diff.main.time_changes(), *(one for one in diff.main.figures if one.key[0] == "step_time_ns")]
        assert len(times) > 1
        assert {change.is_certain for change in times} == {after is slow}
        assert [one for one in diff.notes if note in one] or after is slow
        checked = ask("check", after.path, "--against", before.path, "--allow", "step_time_ns=+10%")
        assert checked.exit_code == (5 if after is slow else 0)
        assert ("the host was busy" in checked.stdout) is (after is not slow)


def test_groups_on_different_devices_are_compared_each_on_its_own(tmp_path: Path) -> None:
    groups = [[timed(tmp_path, f"{host}{number}", host=host) for number in (1, 2)] for host in (False, True)]
    diff = diff_groups(*groups)
    assert (diff.device_idx, diff.after_device_idx) == (0, -1)
    assert {"peak_allocated_bytes", "step_time_ns"} <= {change.name for change in diff.figures}
    heads = ask("diff", *(names(*(run.path for run in group)) for group in groups)).stdout.splitlines()[:2]
    assert ["CPU tensors" in head for head in heads] == [False, True]


def test_a_limit_against_another_run_counts_beyond_the_noise_only(tmp_path: Path) -> None:
    before = timed(tmp_path, "before")
    shaken = lambda step: 0.9 + step % 10 / 25  # noqa: E731
    after = stretched(before, tmp_path / "after.ledger", lambda _: 1.0, steps=shaken)
    worse = stretched(before, tmp_path / "worse.ledger", lambda _: 1.0, steps=lambda step: 1.6 * shaken(step))
    words: list[Any] = ["--against", before.path, "--allow", "step_time_ns=+1%"]
    for run, status in ((after, 0), (worse, 5)):
        result = ask("check", run.path, *words)
        assert result.exit_code == status, result.output
        assert ("within noise" in result.stdout) is (status == 0)


@pytest.mark.torch
def test_a_program_is_recorded_again_and_again(tmp_path: Path) -> None:
    again = "\nimport os, sys\nsys.exit(3 if os.path.exists('again') else open('again', 'w').close())\n"
    write_script(tmp_path, TRAIN + "step()\n" + again)
    done = run_recorded(["train.py"], tmp_path, ("--repeat", "3", "--out", "small"))
    assert done.status == 3
    runs = [read_run(tmp_path / f"small-{number}.ledger") for number in (1, 2, 3)]
    assert [run.manifest.exit_status for run in runs] == [0, 3, 3]
    assert {run.manifest.repeat_of for run in runs} == {"small"}
    assert len({run.manifest.series_ns for run in runs}) == 1
    assert b"gpuledger: 2 of 3: small-2" in done.stderr
    refused = run_recorded(["train.py"], tmp_path, ("--repeat", "2", "--out", "small"))
    assert refused.status == 2
    assert b"small-1.ledger: already exists" in refused.stderr
