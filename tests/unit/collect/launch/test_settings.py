"""The orders of a recorded process, as its environment has them."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.collect.launch.settings import (
    RecordSettings,
    check_steps,
    name_of_call,
    parse_passes,
    parse_step_on,
    parse_steps,
    settings_from,
)
from gpuledger.errors import UsageError
from gpuledger.services.recording import Recording


@given(first=st.integers(1, 10**6), more=st.integers(0, 10**6))
def test_steps_are_read_as_they_are_written(first: int, more: int) -> None:
    last = first + more
    assert parse_steps(f"{first}:{last}") == parse_steps(f" {first} : {last} ") == (first, last)
    assert parse_steps(str(first)) == (first, first)


@given(text=st.text(max_size=8) | st.from_regex(r"[0-9]{1,3}:[0-9]{1,3}", fullmatch=True))
def test_any_text_is_two_steps_or_refused(text: str) -> None:
    with suppress(UsageError):
        first, last = parse_steps(text)
        assert 1 <= first <= last


@pytest.mark.parametrize("text", ["", ":", "0:3", "3:1", "1:", ":3", "1:2:3", "-1:2", "1.5", "1:x", "²"])
def test_what_are_no_steps(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"steps {text!r}")):
        parse_steps(text)


def test_without_a_run_nothing_is_recorded() -> None:
    assert settings_from({}) is None
    assert settings_from({"GPULEDGER_RUN": "", "GPULEDGER_STEPS": "no steps"}) is None


def test_orders_and_their_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert settings_from({"GPULEDGER_RUN": "a.ledger"}) == RecordSettings(
        tmp_path / "a.ledger", 1, 3, True, "auto", {"memory": 0, "energy": 0, "time": 0}, passes_asked=False
    )
    given_all = {
        "GPULEDGER_RUN": "/b.ledger",
        "GPULEDGER_STEPS": "5:7",
        "GPULEDGER_STACKS": "0",
        "GPULEDGER_DEVICES": "cpu",
        "GPULEDGER_PASSES": "memory, time:4",
        "GPULEDGER_STEP_ON": "call:unet",
    }
    assert settings_from(given_all) == RecordSettings(
        Path("/b.ledger"), 5, 7, False, "cpu", {"memory": 0, "time": 4}, step_on="call:unet"
    )
    assert settings_from({"GPULEDGER_RUN": "c", "GPULEDGER_STEPS": ""}) is not None
    with pytest.raises(UsageError, match="steps '7:5'"):
        settings_from({"GPULEDGER_RUN": "d", "GPULEDGER_STEPS": "7:5"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memory,joules", "unknown measurement 'joules'"),
        ("time", "memory cannot be left out"),
        ("memory:3,time", "those of --steps"),
        ("memory,time:0", "expected time:STEPS"),
        ("memory,energy:1.5", "expected energy:STEPS"),
        (("memory", "time"), "not a text"),
        (None, "passes None: not a text"),
    ],
)
def test_passes_that_are_none(text: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_passes(text)


@pytest.mark.parametrize("text", ["", "step", "call", "call:", "call: ", "Optimizer", "mark,module", None, ("mark",)])
def test_what_ends_no_step(text: Any) -> None:
    with pytest.raises(UsageError, match=re.escape(f"step-on {text!r}")):
        parse_step_on(text)


def test_what_ends_a_step() -> None:
    assert [parse_step_on(one) for one in ("auto", "module", "optimizer", "mark", "call:a.b")][-1] == "call:a.b"
    assert [name_of_call(one) for one in ("module", "call:a.b")] == [None, "a.b"]


@pytest.mark.parametrize("steps", [(1, 1), [2, 5]])
def test_steps_in_python_are_two_numbers(steps: object) -> None:
    assert check_steps(steps) == tuple(cast("Any", steps))


@pytest.mark.parametrize("steps", ["1:3", 3, (), (1,), (1, 2, 3), (1.0, 3.0), (True, 3), (0, 3), (3, 1), (-1, 1)])
def test_other_steps_in_python_are_refused_before_a_run_begins(steps: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="steps"):
        check_steps(steps)
    place = tmp_path / "refused.ledger"
    with pytest.raises(UsageError, match="steps"):
        Recording("refused", out=place, steps=cast("Any", steps), stacks=True, force=False, devices="cpu").__enter__()
    assert not place.exists()
