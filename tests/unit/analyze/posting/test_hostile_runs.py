"""Runs that are damaged, or made to do harm: each is refused in a line that names the file, at once, in little room."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from card_recordings import post_recording
from folders import RECORDINGS
from present import present
from quick import quick_gpuledger
from synthetic import make_run

from gpuledger.analyze.overview.summary import summarize
from gpuledger.analyze.posting.pass_energy import POWER
from gpuledger.analyze.posting.posting import post_rank
from gpuledger.analyze.step.rates import find_rates
from gpuledger.errors import InputError
from gpuledger.model.journal.checks import read_checked
from gpuledger.model.run import read_run
from gpuledger.services import runs

LSTM = RECORDINGS / "lstm.npz"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "x.ledger", blocks=60, modules=4)


def with_arrays(directory: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Return a journal whose one part is a recording's with changed arrays."""
    with np.load(LSTM) as archive:
        arrays = {name: archive[name] for name in archive.files}
    change(arrays)
    directory.mkdir(parents=True)
    np.savez(directory / "00000.npz", **arrays)
    return directory


def changed_text(arrays: dict[str, Any], **values: Any) -> None:
    text = json.loads(arrays["text"].tobytes()) | values
    arrays["text"] = np.frombuffer(json.dumps(text).encode(), np.uint8)


CHANGES = {
    "events: its columns have different lengths": lambda a: a.update({"events.bytes": a["events.bytes"][:-1]}),
    "events: column stream is missing": lambda a: a.pop("events.stream"),
    "events.action: expected numbers from 0 to 9": lambda a: a.update({"events.action": a["events.action"] + 50}),
    "events.bytes: -9 is out of range": lambda a: a.update({"events.bytes": a["events.bytes"] * 0 - 9}),
    "events.time_ns: values of type float64": lambda a: a.update({"events.time_ns": a["events.time_ns"] * 0.5}),
    "counters.reason: expected numbers": lambda a: a.update({"counters.reason": a["counters.reason"] - 1}),
    "tags.tag_id: values of type <U4": lambda a: a.update({"tags.tag_id": a["tags.tag_id"].astype("U4")}),
    "devices: expected a list": lambda a: changed_text(a, facts={"devices": 3}),
    "modules[0].root is missing": lambda a: changed_text(a, modules=[{"path": "", "class_name": "", "parent": -1}]),
    "names: expected a list": lambda a: changed_text(a, names={}),
}


@pytest.mark.parametrize("words", CHANGES)
def test_a_part_with_values_that_cannot_be_is_damaged(words: str, tmp_path: Path) -> None:
    directory = with_arrays(tmp_path / "rank-0" / "journal", CHANGES[words])
    damaged = read_checked(directory).damaged
    assert len(damaged) == 1
    assert damaged[0].startswith("00000.npz: damaged recording: ")
    assert words.split(" is missing")[0].split("[")[0] in damaged[0]
    assert post_rank(tmp_path / "rank-0").damaged == tuple(damaged)


def test_numbers_that_stand_for_nothing_are_left_out_and_named(tmp_path: Path) -> None:
    def change(arrays: dict[str, Any]) -> None:
        arrays["tags.module_id"] = np.full_like(arrays["tags.module_id"], 10_000)
        arrays["identities.name_id"] = np.full_like(arrays["identities.name_id"], -7)

    journal = read_checked(with_arrays(tmp_path / "journal", change))
    assert set(journal.tables["tags"]["module_id"].tolist()) == {-1}
    assert [words.partition(":")[0] for words in journal.damaged] == ["tags.module_id", "identities.name_id"]


def test_a_recording_of_a_real_card_has_nothing_that_is_refused(tmp_path: Path) -> None:
    assert [post_recording(name, tmp_path).manifest.damaged for name in ("lstm", "gan", "resnet50")] == [(), (), ()]


def npz_bomb(place: Path, unpacked_bytes: int, *, declared: int | None = None) -> None:
    """Write a part whose one array of zeros takes much more than its file."""
    header = io.BytesIO()
    count = (unpacked_bytes if declared is None else declared) // 8
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (count,)})
    with (
        zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("events.bytes.npy", "w") as member,
    ):
        member.write(header.getvalue())
        for _ in range(unpacked_bytes >> 20):
            member.write(bytes(1 << 20))


def test_a_part_that_unpacks_to_much_is_not_unpacked(tmp_path: Path) -> None:
    npz_bomb(tmp_path / "00000.npz", 100 << 20)
    assert "unpacks to 100 MiB" in read_checked(tmp_path).damaged[0]


def test_a_length_that_is_only_declared_gets_no_room(tmp_path: Path) -> None:
    npz_bomb(tmp_path / "00000.npz", 1 << 20, declared=1 << 50)
    assert "cut off" in read_checked(tmp_path).damaged[0]


def replace(run: Path, table: str, column: str, values: Any) -> None:
    """Write another column into a table of a run."""
    place = run / "rank-0" / table / "part-00000.parquet"
    found = pq.read_table(place)
    number = found.schema.names.index(column)
    pq.write_table(found.set_column(number, pa.field(column, values.type), values), place)


def nulls(count: int) -> Any:
    return pa.nulls(count, pa.int64())


TABLES = {
    "blocks.allocated_bytes: 60 values are null": ("blocks", "allocated_bytes", nulls(60)),
    "blocks.allocated_bytes: 4611686018427387904 is out of": ("blocks", "allocated_bytes", pa.array([1 << 62] * 60)),
    "blocks.alloc_index: 1152921504606846976 is out": ("blocks", "alloc_index", pa.array([1 << 60] * 60)),
    "blocks.category: unknown category 'x'": ("blocks", "category", pa.array(["x"] * 60).dictionary_encode()),
    "damaged part": ("blocks", "step", pa.array([[1]] * 60)),
}


@pytest.mark.parametrize("words", TABLES)
def test_a_table_with_values_that_cannot_be_is_bad_input(words: str, run: Path) -> None:
    replace(run, *TABLES[words])
    with pytest.raises(InputError) as caught:
        runs.load(run).rank().table("blocks")
    assert caught.value.message.startswith("x.ledger: rank-0/blocks/part-00000.parquet: damaged part: ")
    assert words in caught.value.message


def test_a_table_that_unpacks_to_much_is_not_unpacked(run: Path) -> None:
    place = run / "rank-0" / "samples" / "part-00000.parquet"
    table = pa.table({"t_ns": pa.array(np.zeros(30 << 20, np.int64))})
    pq.write_table(table, place, compression="zstd")
    assert place.stat().st_size < 1 << 20
    with pytest.raises(InputError, match=r"samples/part-00000\.parquet: damaged part: it unpacks to 2.. MiB"):
        summarize(runs.load(run).rank())


def test_a_text_that_many_rows_share_is_not_written_out(run: Path) -> None:
    count = 3_000
    columns = {
        "name_id": pa.array(range(count), pa.int32()),
        "name": pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["x" * 100_000])),
    }
    pq.write_table(pa.table(columns), run / "rank-0" / "names" / "part-00000.parquet")
    with pytest.raises(InputError, match=r"names\.name: its strings unpack to 286 MiB"):
        runs.load(run).rank().table("names")


def write(place: Path, **changes: Any) -> None:
    place.write_text(json.dumps(json.loads(place.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": [{"name": "x"}]}, "devices[0]: device_idx is missing"),
        ({"devices": [{"device_idx": 1 << 31}]}, "devices[0].device_idx: 2147483648 is out of range"),
        ({"energy_pass": {"cards": [[1 << 31, "x"]]}}, "energy_pass.cards[0][0]: 2147483648 is out of range"),
        ({"pauses": [3]}, "pauses[0]: expected an object, found 3"),
        ({"notes": "x"}, "notes: expected a list"),
        ({"steps_seen": 1 << 70}, "is too large"),
        ({"calls": [[1, 2, 3]]}, "calls[0]: unexpected length 3 of a list"),
        ({"calls": [[1, 10**30, 4, -1]]}, "is too large"),
        ({"time_steps": [None, 3]}, "time_steps[0]: expected a whole number"),
        ({"libraries": []}, "libraries: expected an object"),
    ],
)
def test_a_manifest_that_a_view_cannot_take_is_bad_input(changes: dict[str, Any], words: str, run: Path) -> None:
    place = run / "rank-0" / "manifest.json"
    write(place, **changes)
    with pytest.raises(InputError) as caught:
        runs.load(run)
    assert caught.value.message.startswith(f"{place}: ")
    assert words in caught.value.message


def test_calls_that_never_end_are_read_at_once(run: Path) -> None:
    write(
        run / "rank-0" / "manifest.json",
        inputs={"module_id": 0, "shape": [4, 5], "tokens": True},
        calls=[[1, 1 << 61, 4, 5]] * 4_000,
        energy_pass={"cards": [], "first_step": 1, "last_step": 1 << 61, "start_ns": 1, "end_ns": 2},
    )
    rates = find_rates(runs.load(run).rank())
    assert rates is not None
    assert rates.batch == 4


@pytest.mark.parametrize("damage", ["cards that are not there", "ticks at one time"])
def test_readings_that_cannot_be_are_left_out(damage: str, tmp_path: Path) -> None:
    run = tmp_path / "x.ledger"
    shutil.copytree(RECORDINGS / "passes" / "halves.ledger", run)
    manifest = run / "rank-0" / "manifest.json"
    kept = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({name: one for name, one in kept.items() if name not in ("sample_parts", "energy")}))
    place = run / "samples" / "journal" / "energy" / "00000.npz"
    with np.load(place) as archive:
        arrays = {name: archive[name] for name in archive.files}
    if damage == "ticks at one time":
        arrays["ticks.t_ns"] = np.full_like(arrays["ticks.t_ns"], arrays["ticks.t_ns"][0])
    else:
        arrays["samples.device_idx"] = arrays["samples.device_idx"] + 100
    np.savez(place, **arrays)
    (found,) = present(runs.load(run).rank().manifest.energy)
    assert (found.source == POWER) == (damage == "ticks at one time")


@pytest.mark.parametrize("where", ["first_step", "last_step", "start_ns", "end_ns"])
def test_an_energy_pass_with_some_of_its_edges_is_bad_input(where: str, tmp_path: Path) -> None:
    run = tmp_path / "x.ledger"
    shutil.copytree(RECORDINGS / "passes" / "halves.ledger", run)
    place = run / "rank-0" / "manifest.json"
    manifest = json.loads(place.read_text())
    del manifest["energy"], manifest["energy_pass"][where]  # not posted yet
    place.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=rf"energy_pass: {where} is missing"):
        runs.load(run)


@pytest.mark.parametrize("where", ["first_step", "start_ns"])
def test_an_energy_pass_that_ends_before_it_begins_is_bad_input(where: str, tmp_path: Path) -> None:
    run = tmp_path / "x.ledger"
    shutil.copytree(RECORDINGS / "passes" / "halves.ledger", run)
    manifest = run / "rank-0" / "manifest.json"
    energy = json.loads(manifest.read_text())["energy"]
    write(manifest, energy=[{**energy[0], where: 1 << 61}])
    with pytest.raises(InputError, match=r"energy\[0\]: it ends before it begins"):
        runs.load(run)


@pytest.mark.parametrize(
    "where", ["manifest.json", "rank-0/manifest.json", "rank-0/blocks/part-00000.parquet", "rank-0/journal/00000.npz"]
)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(where: str, run: Path) -> None:
    place = run / where
    place.unlink(missing_ok=True)
    place.parent.mkdir(exist_ok=True)
    os.mkfifo(place)
    command = [*quick_gpuledger(), "show", str(run)]
    ended = subprocess.run(command, capture_output=True, timeout=600, text=True)
    assert ended.returncode in (0, 3), ended.stderr
    assert "defect" not in ended.stderr
    if where.endswith("parquet"):
        assert "regular file" in ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "{}"),
        ("show", "{}", "--json"),
        ("report", "{}", "--force"),
        ("trace", "{}", "--force"),
        ("compare", "{}", "--markdown"),
        ("export", "{}", "--to", "parquet", "-o", "out"),
        ("sql", "{}", "select count(*) from blocks"),
    ],
)
def test_a_run_whose_name_is_not_utf8_is_shown_by_every_view(arguments: tuple[str, ...], run: Path) -> None:
    name = os.fsencode(run.parent) + b"/tr\xff\xe9.ledger"
    write(run / "manifest.json", command=["python", "tr\udcff\udce9.py"], name="tr\udcff\udce9", notes=["x \udcff"])
    os.rename(os.fsencode(run), name)
    command = [*quick_gpuledger(), *(name if one == "{}" else one for one in arguments)]
    ended = subprocess.run(command, capture_output=True, timeout=600, cwd=run.parent)
    assert ended.returncode == 0, ended.stderr
    ended.stdout.decode("utf-8")
    for file in run.parent.glob("*.html"):
        file.read_bytes().decode("utf-8")


def test_a_manifest_without_notes_has_none(run: Path) -> None:
    write(run / "manifest.json", notes=None)
    assert read_run(run).manifest.notes == ()
