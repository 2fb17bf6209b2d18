"""Settings of ``run``: a flag wins over ``GPULEDGER_*``, that over ``[tool.gpuledger]``, that over the default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger.errors import InputError, UsageError
from gpuledger.files.reading import parse_toml, read_limited

PREFIX = "GPULEDGER_"


@dataclass(frozen=True)
class Option:
    """One setting: its default, its type, and its values where only some are allowed."""

    default: Any
    kind: type
    choices: tuple[str, ...] = ()


OPTIONS: dict[str, Option] = {
    "steps": Option("1:3", str),
    "step_on": Option("auto", str),
    "passes": Option("memory,energy,time", str),
    "until_end": Option(False, bool),
    "stacks": Option(True, bool),
    "devices": Option("auto", str, ("auto", "cuda", "cpu")),
    "flight_recorder": Option(True, bool),
    "ranks": Option("all", str),
    "quiet": Option(False, bool),
}
"""Every setting, by the name it has everywhere: ``--NAME``, ``GPULEDGER_NAME``, ``[tool.gpuledger] NAME``."""

NOT_SETTINGS = ("GPULEDGER_RUN", "GPULEDGER_RUN_ID", "GPULEDGER_DEBUG", "GPULEDGER_DATABASE", "GPULEDGER_LISTEN")
"""Other variables: where the run is, which run is meant to be there, that an error of gpuledger's own is to be raised,
where the operator database is, that the process can be asked for a memory pass."""

DEFAULT_DATABASE = "operators.db"
"""The operator database where nobody names one: a file where the command is given."""

YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
"""Words of a variable that is yes or no."""


@dataclass(frozen=True)
class Setting:
    """A value and where it came from: ``flag``, ``environment``, ``pyproject.toml`` or ``default``."""

    value: Any
    origin: str


def resolve(flags: Mapping[str, Any], environment: Mapping[str, str], directory: Path) -> dict[str, Setting]:
    """Return every setting with its origin. A flag that is None was not given, an empty variable is not set.

    Raises:
        UsageError: a value has the wrong type, or a variable or a key of ``[tool.gpuledger]`` is unknown.
    """
    table = _table(directory / "pyproject.toml")
    _refuse_unknown(environment)
    return {name: _resolve(name, option, flags, environment, table) for name, option in OPTIONS.items()}


def _resolve(
    name: str, option: Option, flags: Mapping[str, Any], environment: Mapping[str, str], table: Mapping[str, Any]
) -> Setting:
    variable = PREFIX + name.upper()
    if flags.get(name) is not None:
        return Setting(flags[name], "flag")
    if environment.get(variable):
        return Setting(_allowed(variable, _parse(variable, environment[variable], option.kind), option), "environment")
    if name in table:
        return Setting(_allowed(f"[tool.gpuledger] {name}", table[name], option), "pyproject.toml")
    return Setting(option.default, "default")


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    known = [*(PREFIX + name.upper() for name in OPTIONS), *NOT_SETTINGS]
    unknown = sorted(name for name in environment if name.startswith(PREFIX) and name not in known)
    if unknown:
        raise UsageError(f"{unknown[0]}: unknown environment variable", hint=f"Use one of {', '.join(known)}")


def _table(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = parse_toml(read_limited(path).decode("utf-8"), path.name)
    except (OSError, UnicodeDecodeError):
        return {}
    except InputError as error:
        raise UsageError(error.message, hint=error.hint) from error
    tool = content.get("tool")
    table = tool.get("gpuledger", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"{path.name}: expected [tool.gpuledger] to be a table")
    unknown = sorted(set(table) - set(OPTIONS))
    if unknown:
        raise UsageError(
            f"{path.name}: [tool.gpuledger] {unknown[0]}: unknown option", hint=f"Use one of {', '.join(OPTIONS)}"
        )
    return table


def _allowed(name: str, value: Any, option: Option) -> Any:
    if not isinstance(value, option.kind):
        expected = "true or false" if option.kind is bool else "a text"
        raise UsageError(f"{name} = {value!r:.80}: expected {expected}")
    if option.choices and value not in option.choices:
        raise UsageError(f"{name} = {value!r:.80}: expected one of {', '.join(option.choices)}")
    return value


def _parse(name: str, text: str, kind: type) -> Any:
    if kind is not bool:
        return text
    if text.lower() in YES or text.lower() in NO:
        return text.lower() in YES
    raise UsageError(f"{name}={text!r}: expected 1 or 0")
