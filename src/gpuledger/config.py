"""Settings of ``run``: a flag wins over ``GPULEDGER_*``, that over ``[tool.gpuledger]``, that over the default."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger.errors import UsageError


@dataclass(frozen=True)
class Option:
    """One setting: its default, and how text from the environment becomes its value."""

    default: Any
    kind: type


OPTIONS: dict[str, Option] = {
    "steps": Option("1:3", str),
    "stacks": Option(True, bool),
    "devices": Option("auto", str),
    "quiet": Option(False, bool),
}
"""Every setting, by the name it has everywhere: ``--NAME``, ``GPULEDGER_NAME``, ``[tool.gpuledger] NAME``."""

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class Setting:
    """A value and where it came from: ``flag``, ``environment``, ``pyproject.toml`` or ``default``."""

    value: Any
    origin: str


def resolve(flags: Mapping[str, Any], environment: Mapping[str, str], directory: Path) -> dict[str, Setting]:
    """Return every setting with its origin. A flag that is None was not given.

    Raises:
        UsageError: a value has the wrong type, or ``[tool.gpuledger]`` holds an unknown key.
    """
    table = _table(directory / "pyproject.toml")
    settings = {}
    for name, option in OPTIONS.items():
        from_environment = environment.get(f"GPULEDGER_{name.upper()}")
        if flags.get(name) is not None:
            settings[name] = Setting(flags[name], "flag")
        elif from_environment is not None:
            settings[name] = Setting(_parse(f"GPULEDGER_{name.upper()}", from_environment, option.kind), "environment")
        elif name in table:
            settings[name] = Setting(_typed(f"[tool.gpuledger] {name}", table[name], option.kind), "pyproject.toml")
        else:
            settings[name] = Setting(option.default, "default")
    return settings


def _table(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return {}
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path.name}: not TOML: {error}") from error
    table = content.get("tool", {}).get("gpuledger", {})
    if not isinstance(table, dict):
        raise UsageError(f"{path.name}: [tool.gpuledger] is not a table")
    unknown = sorted(set(table) - set(OPTIONS))
    if unknown:
        raise UsageError(f"{path.name}: [tool.gpuledger] {unknown[0]}: unknown", hint=f"known: {', '.join(OPTIONS)}")
    return table


def _typed(name: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise UsageError(f"{name} = {value!r}: expected {'true or false' if kind is bool else 'a text'}")
    return value


def _parse(name: str, text: str, kind: type) -> Any:
    if kind is not bool:
        return text
    if text.lower() in _YES or text.lower() in _NO:
        return text.lower() in _YES
    raise UsageError(f"{name}={text!r}: expected 1 or 0")
