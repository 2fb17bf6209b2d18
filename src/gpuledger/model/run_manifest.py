"""A run's manifest: its fields, and the only code that reads and writes it.

Keys unknown to this version are kept when the manifest is written again. An absent key has its field's default.
"""

# No postponed annotations: see :mod:`gpuledger.model.json_object`.
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from gpuledger.files.reading import reading
from gpuledger.files.shapes import ListOf, check_shape
from gpuledger.model.json_object import JsonObject, shape_of
from gpuledger.model.run_directory import MANIFEST, read_versioned, write_json
from gpuledger.units import signal_name


@dataclass(frozen=True, kw_only=True)
class Imported(JsonObject):
    """The source of an imported run: format, files, and lines or files that could not be read, with the reason."""

    format: str
    files: tuple[str, ...] = ()
    unread: Annotated[tuple[str, ...], ListOf(str)]


@dataclass(frozen=True, kw_only=True)
class RunManifest(JsonObject):
    """``manifest.json``: the whole run.

    ``status`` is ``running`` or ``complete``. ``signal`` is the signal that ended the program. ``repeat_of`` is the
    variant of which this run is a repetition, and ``series_ns`` the start time of the series of variants. ``job`` is
    the job of ranks that record themselves.
    """

    schema_version: int
    gpuledger_version: str | None = None
    run_id: str | None = None
    name: str | None = None
    command: tuple[str, ...] = ()
    started_ns: int | None = None
    ended_ns: int | None = None
    exit_status: int | None = None
    signal: int | None = None
    status: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    imported: Imported | None = None
    repeat_of: str | None = None
    series_ns: int | None = None
    job: str | None = None

    @property
    def failure(self) -> str:
        """Return how the program failed: ``exit status 1``, ``SIGKILL``; "" if it did not, or if that is unknown."""
        if self.signal:
            return signal_name(self.signal)
        return f"exit status {self.exit_status}" if self.exit_status else ""


_SHAPE = shape_of(RunManifest)


def write_run_manifest(run_directory: Path, manifest: RunManifest, name: str = MANIFEST) -> Path:
    """Return the file after writing a run's manifest to it. ``name`` is the file's name."""
    path = run_directory / name
    write_json(path, manifest.to_json())
    return path


def read_run_manifest(run_directory: Path) -> RunManifest:
    """Return the manifest of the run in ``run_directory``; raises as :func:`read_checked`."""
    return RunManifest.from_json(read_checked(run_directory / MANIFEST, check_run_manifest))


def check_run_manifest(value: dict[str, Any]) -> None:
    """Check the JSON object of a run's manifest.

    Raises:
        ValueError: a value is invalid; the message names it.
    """
    check_shape(value, _SHAPE, "")


def read_checked(path: Path, check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Return the object in a manifest that passes ``check``.

    Raises:
        InputError: missing, not JSON, not an object, of a newer schema, or of another shape.
    """
    value = read_versioned(path)
    with reading(path, "damaged manifest"):
        check(value)
    return {**value, "notes": value.get("notes") or []}
