"""Capturing, importing and comparing workloads from Python, as the commands of ``gpuledger ops`` do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("torch")

from gpuledger.errors import GpuLedgerError, InputError, UsageError
from gpuledger.ops.database.method import Method
from gpuledger.ops.measure.measured_device import find_device
from gpuledger.ops.totals.compare import Pair
from gpuledger.ops.workloads.workload import Workload, read_workload
from gpuledger.ops.workloads.workload_spec import WorkloadSpec
from gpuledger.services.campaign import compare_workloads
from gpuledger.services.workloads import capture_all, capture_models, import_lists, refuse_taken, write_workloads

pytestmark = pytest.mark.torch
CONV = WorkloadSpec("op_models:conv_net", inputs="2x3x8x8")
ABSENT = WorkloadSpec("op_models:no_such_model", inputs="2x3x8x8")


def named(name: str) -> Workload:
    return Workload(name, "inference", (), (), {"device": "CPU", "notes": []})


def test_one_of_several_models_that_cannot_be_captured_is_left_out() -> None:
    left_out: list[tuple[WorkloadSpec, str]] = []
    found = capture_models([ABSENT, CONV], "cpu", left_out=lambda one, error: left_out.append((one, error.message)))
    assert next(found).name == "conv_net-inference-2x3x8x8"
    assert [one for one, _ in left_out] == [ABSENT]
    with pytest.raises(InputError, match="1 of 2 workloads were not captured"):
        next(found)


def test_the_only_model_is_not_left_out() -> None:
    left_out: list[WorkloadSpec] = []
    with pytest.raises(GpuLedgerError, match="no_such_model"):
        list(capture_models([ABSENT], "cpu", left_out=lambda one, _: left_out.append(one)))
    assert left_out == []


def test_a_wrong_word_is_told_before_the_first_model_is_captured() -> None:
    captured: list[Workload] = []
    with pytest.raises(UsageError, match="--optimizer"):
        captured += capture_models([CONV, WorkloadSpec("a:b", optimizer="none")], "cpu", left_out=print)
    assert captured == []


def test_a_campaign_goes_on_without_what_cannot_be_captured(tmp_path: Path) -> None:
    left_out: list[WorkloadSpec] = []
    wrong = WorkloadSpec("a:b", optimizer="none")
    (found,) = capture_all([wrong, CONV], find_device("cpu"), tmp_path / "out", lambda one, _: left_out.append(one))
    assert left_out == [wrong]
    assert read_workload(tmp_path / "out" / found.file_name).uses == found.uses
    with pytest.raises(InputError, match="no workload could be captured"):
        capture_all([wrong], find_device("cpu"), tmp_path, lambda *_: None)


def test_workloads_are_written_where_they_are_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = named("one"), named("two")
    assert list(write_workloads([one], single=True)) == [(Path("one.workload.json"), one)]
    assert list(write_workloads([one], Path("mine.json"), single=True)) == [(Path("mine.json"), one)]
    written = [path for path, _ in write_workloads([one, two], tmp_path / "all" / "of", single=False)]
    assert written == [tmp_path / "all" / "of" / f"{name}.workload.json" for name in ("one", "two")]
    (path,) = (path for path, _ in write_workloads([one], tmp_path / "all", single=True))
    assert path == tmp_path / "all" / "one.workload.json"
    assert read_workload(path).name == "one"


def test_a_file_is_refused_before_anything_is_captured(tmp_path: Path) -> None:
    begun = []

    def capture() -> Iterator[Workload]:
        begun.append(True)
        yield named("one")

    place = tmp_path / "mine.json"
    place.write_text("mine")
    with pytest.raises(UsageError, match="exists") as caught:
        list(write_workloads(capture(), place, single=True))
    assert (begun, place.read_text(), caught.value.hint) == (
        [],
        "mine",
        "Choose another name with -o, or overwrite it with --force",
    )
    assert len(list(write_workloads(capture(), place, single=True, replace=True))) == 1
    assert read_workload(place).name == "one"
    with pytest.raises(UsageError):
        refuse_taken(place, replace=False)


LIST = """Operator: aten.relu.default
cnt: 3, ((T([4, 4], f32),), {})
"""


def test_no_list_is_written_where_one_of_the_files_exists(tmp_path: Path) -> None:
    lists = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for one in lists:
        one.write_text(LIST)
    taken = tmp_path / "b.workload.json"
    taken.write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        list(import_lists(lists, tmp_path))
    assert not (tmp_path / "a.workload.json").exists()
    found = dict(import_lists(lists, tmp_path, replace=True))
    assert list(found) == [tmp_path / "a.workload.json", taken]
    assert {workload.calls for workload in found.values()} == {3}


def compared(workload: Workload, database: Path, *, trusted: bool) -> list[Pair]:
    method = Method(
        target_frac=0.5, warm_up_ns=0, block_ns=100_000, gap_ns=0, least_blocks=3, most_blocks=5, energy=False
    )
    place = replace(find_device("cpu"), cache_bytes=1 << 12)
    return compare_workloads([workload], place, str(database), method=method, energy_share_frac=0.9, trusted=trusted)


def test_sums_stand_beside_whole_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    database = tmp_path / "new.database"
    (workload,) = capture_models([WorkloadSpec("torch.nn:ReLU", inputs="8x8")], "cpu", left_out=print)
    for untrusted in (workload, named("train")):
        with pytest.raises(InputError, match=r"must not name Python code|captured from a program"):
            compared(untrusted, database, trusted=False)
        assert not database.exists()  # what cannot be run is refused before anything is measured
    (pair,) = compared(workload, database, trusted=True)
    assert (pair.name, pair.mode, pair.sum.calls_frac) == ("ReLU-inference-8x8", "inference", 1.0)
    assert pair.whole.time_ns.median > 0
    assert pair.whole.energy_j is None
