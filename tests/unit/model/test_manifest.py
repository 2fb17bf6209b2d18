"""Manifests: what is read is written back whole, unknown keys included, and the recorder tells what it has."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from folders import RECORDINGS, ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.errors import InputError
from gpuledger.files.shapes import Either, Fields, Items, ListOf, MappingOf, WholeNumber
from gpuledger.model.json_object import shape_of
from gpuledger.model.manifest import (
    RankManifest,
    check_rank_manifest,
    read_rank_manifest,
    with_notes,
    write_rank_manifest,
)
from gpuledger.model.pass_facts import PassEnergy
from gpuledger.model.recorder_kind import RecorderKind
from gpuledger.model.run_directory import MANIFEST, write_json
from gpuledger.model.run_manifest import RunManifest, read_run_manifest, write_run_manifest

RECORDED = RECORDINGS / "passes"
SOURCES = ROOT / "src" / "gpuledger"


def values_of(shape: Any) -> st.SearchStrategy[Any]:
    """Return JSON values of a shape; objects have a key that is not known, too."""
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(0, 9),
        float: st.one_of(st.integers(0, 9), st.floats(0, 9)),
        str: st.sampled_from(["", "a", "cuda-history", "of next year"]),
        bool: st.booleans(),
        object: st.sampled_from([None, 1, "x", [1], {"a": []}]),
        None: st.none(),
    }
    if isinstance(shape, Either):
        return st.one_of([values_of(one) for one in shape.shapes])
    if isinstance(shape, ListOf):
        return st.lists(values_of(shape.entry), min_size=shape.least, max_size=min(shape.most or 3, 3 + shape.least))
    if isinstance(shape, Items):
        return st.tuples(*map(values_of, shape.shapes)).map(list)
    if isinstance(shape, MappingOf):
        return st.dictionaries(st.sampled_from(["a", "b"]), values_of(shape.entry))
    if isinstance(shape, Fields):
        known = {name: values_of(inner) for name, inner in shape.known.items()}
        apart = {name: one for name, one in known.items() if name not in (*shape.required, *shape.together)}
        apart["unheard_of"] = plain[object]
        kinds = [shape.required, (*shape.required, *shape.together)]
        return st.one_of(
            [st.fixed_dictionaries({name: known[name] for name in kind}, optional=apart) for kind in kinds]
        )
    if isinstance(shape, WholeNumber):
        return st.integers(shape.least, shape.most)
    return plain[shape]


@settings(deadline=None)
@given(value=values_of(shape_of(RankManifest)))
def test_a_ranks_manifest_that_is_read_is_written_back_as_it_was(value: dict[str, Any]) -> None:
    manifest = RankManifest.from_json(value)
    assert manifest.to_json() == value
    assert RankManifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest
    noted = with_notes(manifest, "more")
    assert noted.to_json() == {**value, "notes": [*(value.get("notes") or []), "more"]}


@settings(deadline=None)
@given(value=values_of(shape_of(RunManifest)))
def test_a_runs_manifest_that_is_read_is_written_back_as_it_was(value: dict[str, Any]) -> None:
    assert RunManifest.from_json(value).to_json() == value


@pytest.mark.parametrize("place", sorted(RECORDED.rglob(MANIFEST)), ids=lambda place: "-".join(place.parts[-3:-1]))
def test_what_was_written_before_is_read_and_every_key_is_known(place: Path, tmp_path: Path) -> None:
    value = json.loads(place.read_text())
    is_rank = place.parent.name.startswith("rank-")
    manifest = read_rank_manifest(place.parent) if is_rank else read_run_manifest(place.parent)
    assert manifest.to_json() == value
    assert value.keys() <= {field.name for field in fields(manifest)}
    if isinstance(manifest, RankManifest):
        write_rank_manifest(tmp_path / "rank-0", manifest)
        assert read_rank_manifest(tmp_path / "rank-0") == manifest
    else:
        write_run_manifest(tmp_path, manifest)
        assert read_run_manifest(tmp_path) == manifest


def test_a_changed_part_keeps_what_it_had_beside_it() -> None:
    energy = {"device_idx": 0, "first_step": 1, "last_step": 2, "start_ns": 3, "end_ns": 4, "uncertainty_j": None}
    manifest = RankManifest.from_json({"schema_version": 1, "rank": 0, "energy": [{**energy, "later": 5}]})
    assert manifest.energy is not None
    changed = replace(manifest, energy=(replace(manifest.energy[0], energy_j=7.5),))
    assert changed.to_json()["energy"] == [{**energy, "later": 5, "energy_j": 7.5}]


def test_a_new_part_has_every_key() -> None:
    new = PassEnergy(device_idx=0, first_step=1, last_step=2, start_ns=3, end_ns=4, uncertainty_j=None)
    assert new.to_json().keys() == {field.name for field in fields(PassEnergy)} - {"as_read"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"rank": "0"}, "rank: expected a whole number or null, found '0'"),
        ({"devices": [{}]}, r"devices\[0\]: device_idx is missing"),
        ({"time_steps": [1]}, "time_steps: unexpected length 1 of a list"),
        ({"window": {"first_step": "1"}}, "window.first_step: expected a whole number or null"),
        ({"recorder": 3}, "recorder: expected a string or null"),
        ({"calls": [[1, 2, 3]]}, r"calls\[0\]: unexpected length 3 of a list"),
        ({"sampler": {"readings": "many"}}, "sampler.readings: expected a whole number or null"),
    ],
)
def test_a_value_that_is_no_such_thing_is_named(value: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        check_rank_manifest({"schema_version": 1, **value})
    (tmp_path / "rank-0").mkdir()
    write_json(tmp_path / "rank-0" / MANIFEST, {"schema_version": 1, **value})
    with pytest.raises(InputError, match="damaged manifest"):
        read_rank_manifest(tmp_path / "rank-0")


def test_a_recorder_of_next_year_is_kept_by_its_name() -> None:
    value = {"schema_version": 1, "recorder": "jax-buffers"}
    manifest = RankManifest.from_json(value)
    assert (manifest.recorder, manifest.recorder_name) == (RecorderKind.UNKNOWN, "jax-buffers")
    assert with_notes(manifest, "x").to_json() == {**value, "notes": ["x"]}
    assert RankManifest(schema_version=1).recorder_name == ""


def test_nothing_compares_the_name_of_a_recorder() -> None:
    """A recorder is asked for what it has; its names stand where they are written, and in one enum."""
    names = "|".join(kind.value for kind in RecorderKind if kind.value)
    compared = subprocess.run(
        ["grep", "-rnE", rf"recorder\w*\"?\)? *(==|!=|in) |(==|!=) *\"({names})\"", "--include=*.py", str(SOURCES)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
    assert compared == []


def test_no_manifest_is_read_as_a_dictionary() -> None:
    """What writes the first manifest of a run, inside the recorded program, makes it as a dictionary."""
    writers = ("collect/launch/", "model/run_writer.py")
    found = subprocess.run(
        ["grep", "-rnE", r"manifest(\[\"|\.get\()", "--include=*.py", str(SOURCES)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
    assert [line for line in found if not line.removeprefix(f"{SOURCES}/").startswith(writers)] == []


def test_no_text_is_compiled_when_a_manifest_is_read(tmp_path: Path) -> None:
    """A recorded program may close its run at its exit, after an interrupt that text which is compiled would hide."""
    write_json(tmp_path / MANIFEST, {"schema_version": 1, "notes": [], "command": ["a"]})
    source = (
        "import sys; from pathlib import Path\n"
        "from gpuledger.model.manifest import *; from gpuledger.model.run_manifest import *\n"
        "def heard(event, args):\n"
        "    if event == 'compile': raise SystemExit(f'compiled: {args}')\n"
        "sys.addaudithook(heard)\n"
        f"place = Path({str(tmp_path)!r}); write_run_manifest(place, with_notes(read_run_manifest(place), 'x'))\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    assert read_run_manifest(tmp_path).notes == ("x",)
