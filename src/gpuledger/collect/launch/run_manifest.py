"""The run's manifest: how it begins and how it is closed, by the parent or by the process that began the run.

That process closes it at its exit. What is loaded then must not make a dataclass: Python forgets that an interrupt
was not handled when text is compiled, and would end with status 1 instead of the signal.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuledger._version import __version__
from gpuledger.model.new_run import check_run
from gpuledger.model.run import SUFFIX, rank_directories, read_json, write_json
from gpuledger.model.tables import SCHEMA_VERSION
from gpuledger.redact import redact

NOTHING_SEEN = (
    "No Python process of the program used torch and lived to write of it (one started with -I, -E or -S is not seen)."
)

_RAW_BYTE = re.compile("[\udc80-\udcff]")
"""Python's stand-in for a byte that is not UTF-8 (PEP 383)."""


def new_manifest(name: str, command: Sequence[str], settings: Mapping[str, tuple[Any, str]]) -> dict[str, Any]:
    """Return the manifest of a run that begins now."""
    return {
        "schema_version": SCHEMA_VERSION,
        "gpuledger_version": __version__,
        "run_id": os.urandom(8).hex(),
        "name": readable(name.removesuffix(SUFFIX)),
        "command": [readable(word) for word in redact(command)],
        "started_ns": time.time_ns(),
        "ended_ns": None,
        "exit_status": None,
        "signal": None,
        "status": "running",
        "settings": {key: {"value": value, "origin": origin} for key, (value, origin) in settings.items()},
        "notes": [],
    }


def readable(text: str) -> str:
    """Return a word of a command line in valid Unicode: a byte that is not UTF-8 as a shell's ``$'…'`` takes it."""
    return (
        _RAW_BYTE.sub(lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", text).encode(errors="backslashreplace").decode()
    )


def close_manifest(
    run_directory: Path, notes: Sequence[str] = (), *, run_id: str | None = None, **facts: int | None
) -> None:
    """Write into the manifest that the run is complete, ``facts``, ``notes`` and those of processes below it.

    Raises:
        RunReplacedError: the run there is not the one with the number ``run_id``, where that is given.
        OSError: the manifest cannot be written.
        InputError: the manifest cannot be read any more.
    """
    if run_id is not None:
        check_run(run_directory, run_id)
    manifest = read_json(run_directory / "manifest.json")
    notes = [*_left_notes(run_directory), *notes]
    if not notes and not rank_directories(run_directory):
        notes = [NOTHING_SEEN]
    manifest.update(facts, ended_ns=time.time_ns(), status="complete", notes=[*manifest["notes"], *notes])
    write_json(run_directory / "manifest.json", manifest)


def _left_notes(run_directory: Path) -> list[str]:
    lines: list[str] = []
    for place in sorted((run_directory / "notes").glob("*.txt")):
        lines += [line for line in place.read_text(encoding="utf-8", errors="replace").splitlines() if line]
    return list(dict.fromkeys(lines))
