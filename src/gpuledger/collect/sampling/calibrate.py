"""Measure and cache the GPU memory of the CUDA context and libraries, which the caching allocator does not know.

The driver does not itemize these bytes. A separate process therefore runs the work of a training step piece by piece.
After each piece it reads the GPU memory of the process and subtracts what the allocator reserved. The bytes after the
first kernel are the context, all later ones are libraries. cuBLAS has a handle per thread, so the backward pass, which
runs in its own thread, adds a second one.

A profile is valid for one GPU model, driver, torch and CUDA version, and is cached in
``$XDG_CACHE_HOME/gpuledger/calibration.json``.
"""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuledger.errors import GpuLedgerError, InputError
from gpuledger.files.reading import read_json_file
from gpuledger.model.manifest import Libraries, RankManifest
from gpuledger.model.run_directory import write_json
from gpuledger.processes.child_job import run_child_job, serve_job

PROFILE_VERSION = 1
MEASURE_TIMEOUT_S = 180.0
_NOT_FOR_THE_CHILD = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")
"""Allocator settings to unset for the measurement, which subtracts the allocator's bytes and needs its defaults."""


@dataclass(frozen=True)
class CardKey:
    """What a profile is valid for. It has no serial number, because GPUs of one model are alike."""

    card: str
    driver_version: str
    torch_version: str
    cuda_version: str
    module_loading: str

    def __str__(self) -> str:
        """Return the key as one line, the name under which a profile is cached."""
        lazily = "" if self.module_loading == "LAZY" else f", modules loaded {self.module_loading}"
        return (
            f"{self.card}, driver {self.driver_version}, torch {self.torch_version}, CUDA {self.cuda_version}{lazily}"
        )


@dataclass(frozen=True)
class OutsideGrowth:
    """Bytes of the process outside the allocator after ``name`` ran for the first time (cumulative)."""

    name: str
    backward: bool
    bytes: int


@dataclass(frozen=True)
class Profile:
    """GPU memory of the context and libraries on one GPU.

    ``readings`` are in the order in which the pieces ran, the forward ones first; see :data:`OutsideBytes.bytes`.
    """

    key: CardKey
    measured_on: str
    readings: tuple[OutsideGrowth, ...]

    @property
    def context_bytes(self) -> int:
        """Return the bytes of the context, including torch's own first kernels."""
        return self.readings[0].bytes

    def library_bytes(self, *, trained: bool) -> int:
        """Return the bytes that libraries add to the context, in training if ``trained``, otherwise in inference."""
        held = [reading.bytes for reading in self.readings if trained or not reading.backward]
        return held[-1] - self.context_bytes

    def increments(self) -> list[tuple[str, int]]:
        """Return ``(name, bytes)`` for each piece: the bytes that it added to those of the pieces before it."""
        before = 0
        added = []
        for reading in self.readings:
            added.append((reading.name, reading.bytes - before))
            before = reading.bytes
        return added

    def to_json(self) -> dict[str, Any]:
        """Return the profile as a JSON value."""
        return asdict(self)

    @staticmethod
    def from_json(value: Any) -> Profile:
        """Return the profile of a JSON value.

        Raises:
            InputError: the value is not a profile.
        """
        try:
            readings = tuple(
                OutsideGrowth(str(r["name"]), bool(r["backward"]), int(r["bytes"])) for r in value["readings"]
            )
            profile = Profile(CardKey(**value["key"]), str(value["measured_on"]), readings)
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(f"calibration: not a valid profile: {type(error).__name__}: {error}") from error
        if not readings or readings[0].backward:
            raise InputError("calibration: not a valid profile: it does not begin with the CUDA context")
        return profile


@dataclass(frozen=True)
class Calibration:
    """The profile of the requested GPU; None if it is not available, for the reason in ``notes``."""

    profile: Profile | None
    notes: tuple[str, ...] = ()


def cache_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file with cached profiles."""
    base = environment.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "gpuledger" / "calibration.json"


def read_profiles(path: Path) -> tuple[dict[str, Any], str | None]:
    """Return the cached profiles as JSON values, and a note if the file cannot be read."""
    try:
        value = read_json_file(path)
    except FileNotFoundError:
        return {}, None
    except (OSError, InputError) as error:
        return {}, f"{path}: not usable, so the calibration runs again: {error}"
    if not isinstance(value, dict) or value.get("profile_version") != PROFILE_VERSION:
        return {}, f"{path}: not usable, so the calibration runs again: its version is not {PROFILE_VERSION}"
    profiles = value.get("profiles")
    return (profiles, None) if isinstance(profiles, dict) else ({}, f"{path}: not usable: it has no profiles")


def load_profile(key: CardKey, path: Path) -> Calibration:
    """Return the cached profile for ``key``; None if there is none."""
    profiles, note = read_profiles(path)
    notes = (note,) if note else ()
    if str(key) not in profiles:
        return Calibration(None, notes)
    try:
        return Calibration(Profile.from_json(profiles[str(key)]), notes)
    except InputError as error:
        return Calibration(None, (*notes, f"{path}: not usable, so the calibration runs again: {error}"))


def store_profile(profile: Profile, path: Path) -> None:
    """Add a profile to the cache. The file is replaced atomically.

    Raises:
        OSError: it cannot be written.
    """
    profiles, _ = read_profiles(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {**profiles, str(profile.key): profile.to_json()}
    write_json(path, {"profile_version": PROFILE_VERSION, "profiles": kept})


def lookup_or_measure(
    key: CardKey, uuid: str, *, path: Path | None = None, measure_card: Callable[[str], Profile] | None = None
) -> Calibration:
    """Return the cached profile for ``key``; if there is none, measure it in a separate process (about 10 s).

    Nothing is raised. If there is no GPU, or torch is not the recorded version, there is no profile, and a note gives
    the reason.
    """
    place = path or cache_path()
    kept = load_profile(key, place)
    if kept.profile is not None:
        return kept
    try:
        profile = (measure_card or measure)(uuid)
    except GpuLedgerError as error:
        return Calibration(None, (*kept.notes, f"CUDA context and libraries were not measured: {error.message}"))
    notes = kept.notes
    try:
        store_profile(profile, place)
    except OSError as error:
        notes = (*notes, f"{place}: the calibration was not saved: {error}")
    if profile.key != key:
        other = f"CUDA context and libraries were not measured: the run used {key}, here is {profile.key}"
        return Calibration(None, (*notes, other))
    return Calibration(profile, notes)


def libraries_for(
    manifest: RankManifest, *, trained: bool, lookup: Callable[[CardKey, str], Calibration] = lookup_or_measure
) -> tuple[Libraries | None, tuple[str, ...]]:
    """Return the ``libraries`` entry of a rank's manifest, and notes; None if there is no GPU or no profile.

    Args:
        manifest: The rank's manifest.
        trained: Whether the rank ran a backward pass.
        lookup: Returns the profile of a GPU.
    """
    cards = [device for device in manifest.devices if device.device_idx >= 0]
    if not cards:
        return None, ()
    key = CardKey(
        card=str(cards[0].name),
        driver_version=str(cards[0].driver_version),
        torch_version=str(manifest.torch_version),
        cuda_version=str(manifest.cuda_version),
        module_loading=_module_loading(),
    )
    found = lookup(key, cards[0].uuid or "")
    if found.profile is None:
        return None, found.notes
    work = "forward, backward and optimizer" if trained else "forward only"
    libraries = Libraries(
        context_bytes=found.profile.context_bytes,
        library_bytes=found.profile.library_bytes(trained=trained),
        source=f"measured in a separate process ({work}) on {found.profile.measured_on}: {key}",
    )
    return libraries, found.notes


def _module_loading() -> str:
    return os.environ.get("CUDA_MODULE_LOADING", "").upper() or "LAZY"


def measure(uuid: str = "") -> Profile:
    """Measure the profile of one GPU (the first one without ``uuid``) in a separate process, and return it.

    Raises:
        gpuledger.errors.NoDeviceError: no GPU, no driver, or its processes cannot be read.
        GpuLedgerError: the separate process failed or timed out.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GPULEDGER_") and name not in _NOT_FOR_THE_CHILD
    }
    if uuid:
        environment["CUDA_VISIBLE_DEVICES"] = uuid
    module = "gpuledger.collect.sampling.calibrate"
    return Profile.from_json(
        run_child_job(module, {}, name="calibration", environment=environment, limit_s=MEASURE_TIMEOUT_S)
    )


def measure_here(_order: dict[str, Any], _arguments: list[str]) -> dict[str, Any]:
    """Measure the first GPU that this process sees, and return its profile as a JSON value.

    Raises:
        gpuledger.errors.NoDeviceError: no GPU, no driver, or its processes cannot be read.
    """
    from gpuledger.collect.sampling.calibrate_card import read_card

    key, readings = read_card()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Profile(
        CardKey(*key, _module_loading()), today, tuple(OutsideGrowth(*reading) for reading in readings)
    ).to_json()


if __name__ == "__main__":
    sys.exit(serve_job(measure_here))
