"""Settings: who wins, where each came from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.config import OPTIONS, Setting, resolve
from gpuledger.errors import UsageError


def write(directory: Path, text: str) -> None:
    (directory / "pyproject.toml").write_text(text, encoding="utf-8")


def test_defaults_without_any_source(tmp_path: Path) -> None:
    expected = {name: Setting(option.default, "default") for name, option in OPTIONS.items()}
    assert resolve({}, {}, tmp_path) == expected


def test_each_source_wins_over_the_next(tmp_path: Path) -> None:
    write(tmp_path, "[tool.gpuledger]\nsteps = '3:3'\nstacks = false\ndevices = 'cpu'\n")
    environment = {"GPULEDGER_STEPS": "2:2", "GPULEDGER_STACKS": "yes", "HOME": "/"}
    settings = resolve({"steps": "1:1", "stacks": None}, environment, tmp_path)
    assert settings == {
        "steps": Setting("1:1", "flag"),
        "step_on": Setting("auto", "default"),
        "passes": Setting("memory,energy,time", "default"),
        "until_end": Setting(False, "default"),
        "stacks": Setting(True, "environment"),
        "devices": Setting("cpu", "pyproject.toml"),
        "flight_recorder": Setting(True, "default"),
        "ranks": Setting("all", "default"),
        "quiet": Setting(False, "default"),
    }


def test_a_flag_that_is_off_is_given(tmp_path: Path) -> None:
    assert resolve({"stacks": False}, {"GPULEDGER_STACKS": "1"}, tmp_path)["stacks"] == Setting(False, "flag")


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    assert resolve({}, {"GPULEDGER_STEPS": ""}, tmp_path)["steps"].origin == "default"


@pytest.mark.parametrize(("text", "value"), [("1", True), ("TRUE", True), ("on", True), ("0", False), ("No", False)])
def test_words_for_yes_and_no(text: str, value: bool, tmp_path: Path) -> None:
    assert resolve({}, {"GPULEDGER_QUIET": text}, tmp_path)["quiet"] == Setting(value, "environment")


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[tool.gpuledger]\nstep = '1:2'", "pyproject.toml: [tool.gpuledger] step: unknown option"),
        ("[tool.gpuledger]\nsteps = 3", "[tool.gpuledger] steps = 3: expected a text"),
        ("[tool.gpuledger]\nstacks = 1", "[tool.gpuledger] stacks = 1: expected true or false"),
        ("[tool.gpuledger]\ndevices = 'tpu'", "[tool.gpuledger] devices = 'tpu': expected one of auto, cuda, cpu"),
        ("[tool]\ngpuledger = 'x'", "pyproject.toml: expected [tool.gpuledger] to be a table"),
        ("[tool.gpuledger", "pyproject.toml: not TOML: "),
    ],
)
def test_what_pyproject_must_not_hold(toml: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, toml)
    with pytest.raises(UsageError) as caught:
        resolve({}, {}, tmp_path)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"GPULEDGER_STACKS": "maybe"}, "GPULEDGER_STACKS='maybe': expected 1 or 0"),
        ({"GPULEDGER_DEVICES": "tpu"}, "GPULEDGER_DEVICES = 'tpu': expected one of"),
        ({"GPULEDGER_STPES": "1:2"}, "GPULEDGER_STPES: unknown environment variable"),
    ],
)
def test_what_the_environment_must_not_hold(environment: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({}, environment, tmp_path)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("toml", ["", "[project]\nname = 'x'", "tool = 3", "[tool.other]\nsteps = 1"])
def test_a_pyproject_of_others_is_read_past(toml: str, tmp_path: Path) -> None:
    write(tmp_path, toml)
    assert {setting.origin for setting in resolve({}, {}, tmp_path).values()} == {"default"}
