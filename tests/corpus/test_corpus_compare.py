"""The corpus's comparison: it sees what a recording changes, and nothing that changes by itself."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import run
from corpus_compare import differences, faults_of_program
from corpus_outcome import Outcome, Place
from corpus_programs import Program, read_program

STATE = {
    "label": "end",
    "weights": "a",
    "random": {"python": "1"},
    "depth": 900,
    "hooks": {"dispatch_modes": 0},
    "process": {"native_threads": ["python"], "descriptors": ["/dev/null"]},
}
BARE = Outcome(0, b"out\n", b"", {"end": STATE}, {"saved": "x"}, 0)
PROGRAM = Program(Path("programs/hooks/one.py"))


def with_state(**changes: object) -> Outcome:
    return replace(BARE, reports={"end": {**STATE, **changes}})


@pytest.mark.parametrize(
    ("recorded", "told"),
    [
        (replace(BARE, status=1), "status 0 bare, 1 recorded"),
        (replace(BARE, stdout=b"other\n"), "stdout: -out"),
        (replace(BARE, stderr=b"frame of gpuledger\n"), "stderr names gpuledger"),
        (replace(BARE, files={}), "file.saved: x bare, (absent) recorded"),
        (replace(BARE, processes_left=1), "0 processes left bare, 1 recorded"),
        (replace(BARE, reports={}), "report 'end' was not written"),
        (replace(BARE, notes=["it stopped"]), "run: it stopped"),
        (with_state(weights="b"), "end.weights: a bare, b recorded"),
        (with_state(depth=897), "end.depth: 900 bare, 897 recorded"),
        (with_state(hooks={"dispatch_modes": 1}), "end.hooks.dispatch_modes: 0 bare, 1 recorded"),
        (
            with_state(process={"native_threads": ["python"], "descriptors": ["/dev/null", "/x"]}),
            "end.process.descriptors: without [], with ['/x']",
        ),
        (
            with_state(process={"native_threads": ["python"], "descriptors": ["/dev/null", "pipe:[N]"]}),
            "end.process.descriptors: without [], with ['pipe:[N]']",
        ),
    ],
)
def test_what_a_recording_changes_is_told(recorded: Outcome, told: str) -> None:
    assert told in list(differences(PROGRAM, BARE, BARE, recorded))


@pytest.mark.parametrize(
    ("second", "recorded"),
    [
        (BARE, BARE),
        (BARE, with_state(depth=898)),
        (with_state(weights="b"), with_state(weights="c")),
        (BARE, with_state(process={"native_threads": ["python", "python"], "descriptors": ["/dev/null"]})),
    ],
    ids=["equal", "two frames", "noise of its own", "a thread of torch's profiler"],
)
def test_what_changes_by_itself_is_not(second: Outcome, recorded: Outcome) -> None:
    assert list(differences(PROGRAM, BARE, second, recorded)) == []


def test_hooks_are_left_out_while_the_recording_goes_on() -> None:
    recorded = with_state(hooks={"dispatch_modes": 1})
    assert list(differences(PROGRAM, BARE, BARE, recorded, still_recording=True)) == []


def test_a_program_that_is_no_test_is_told() -> None:
    assert list(faults_of_program(PROGRAM, replace(BARE, status=2), replace(BARE, status=2)))
    assert list(faults_of_program(PROGRAM, BARE, replace(BARE, stderr=b"0x1"))) == [
        "two bare executions differ in stderr"
    ]
    heads = [replace(BARE, stderr=b"W1122 09:52:%d.586000 15263 torch/x.py:858] so\n" % second) for second in (31, 32)]
    assert list(faults_of_program(PROGRAM, *heads)) == []


def test_a_header_is_read(tmp_path: Path) -> None:
    script = tmp_path / "one.py"
    script.write_text("# About.\n# status: 3\n# also: --steps 1:9\n# allowed: walks frames\n# environment: A='b c'\n")
    program = read_program(script)
    assert (program.status, program.also) == (3, (("--steps", "1:9"),))
    assert program.allowed == {"walks frames"}
    assert program.environment == (("A", "b c"),)
    script.write_text("import sys\n")
    with pytest.raises(ValueError, match="first line"):
        read_program(script)


LINE = 'stderr: -  File "{}/corpus-sskw2pvl/place/work/deadline.py", line 36, in <module>'


@pytest.mark.parametrize("folder", ["/tmp", "/var/folders/zz/T"])
def test_an_outcome_names_no_temporary_folder(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchs = 'stderr: -  File "/opt/x/lib/python3.12/site-packages/torch/_tensor.py", line 631, in backward'
    record = {
        "program": "errors/deadline",
        "differences": [LINE.format(folder), torchs, "status -14 bare"],
        "faults": [],
    }
    place = tmp_path / "outcome.json"
    place.write_text(json.dumps({"equal": 3, "records": [record]}), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["run.py", "--clean", str(place)])
    assert run.main() == 0
    cleaned = json.loads(place.read_text(encoding="utf-8"))
    assert cleaned["equal"] == 3
    assert cleaned["records"][0]["differences"] == [
        'stderr: -  File "work/deadline.py", line 36, in <module>',
        'stderr: -  File "torch/_tensor.py", line 631, in backward',
        "status -14 bare",
    ]


def test_a_record_names_no_temporary_folder(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text("")
    folders: list[str] = []

    def execute(_program: Program, place: Place, options: tuple[str, ...] | None) -> Outcome:
        folders.append(str(place.work))
        return replace(BARE, stderr=b"" if options is None else f'  File "{place.work}/one.py"\n'.encode())

    records = run.run_program(Program(path), execute, way="fresh")
    assert any("one.py" in line for line in records[0].differences)
    assert not any(folders[0] in line for line in records[0].differences)
