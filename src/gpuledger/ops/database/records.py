"""Values of the database: environments and records of measurements."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from gpuledger.files.shapes import Fields, ListOf, MappingOf, check_shape, maybe

Status = Literal["ok", "failed"]


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON text, as hex."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Environment:
    """GPU and software of a measurement. ``flags`` are settings that are not in a key."""

    card: str
    driver: str | None
    torch: str
    cuda: str | None
    flags: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Return a hash, the same for equal environments."""
        return digest_of(self.to_json())

    @property
    def title(self) -> str:
        """Return the GPU's name, with clock and TF32 setting for imported rows."""
        clock_mhz = self.flags.get("clock_mhz")
        clock = "" if clock_mhz is None else f" at {clock_mhz} MHz"
        return self.card + clock + (" without TF32" if self.flags.get("tf32") is False else "")

    def to_json(self) -> dict[str, Any]:
        """Return the environment as a JSON value."""
        return asdict(self)


@dataclass(frozen=True)
class Record:
    """One measurement of one operator.

    Attributes:
        method: How: ``mode`` (``hot`` or ``rotating``), ``time`` or ``energy``, ``graph`` or ``eager``, …
        time_median_ns: Time of one call. None if it failed.
        energy_median_j: Energy of one call. None if only time was measured.
        base_w: The GPU's power while it is ready and idle.
        blocks: The repetitions of the medians.
        kernels: Names of the kernels that ran.
        reason: Why it failed, in one line; "" if it did not.
        measured_ns: Unix time in ns.
    """

    key_digest: str
    environment_digest: str
    method: Mapping[str, Any]
    time_median_ns: float | None = None
    time_low_ns: float | None = None
    time_high_ns: float | None = None
    energy_median_j: float | None = None
    energy_low_j: float | None = None
    energy_high_j: float | None = None
    base_w: float | None = None
    blocks: tuple[Mapping[str, Any], ...] = ()
    kernels: tuple[str, ...] = ()
    status: Status = "ok"
    reason: str = ""
    measured_ns: int = 0
    flops: int | None = None
    bytes: int | None = None

    @cached_property
    def digest(self) -> str:
        """Return a digest of operator, environment, method and time, so that a record is stored once."""
        return digest_of([self.key_digest, self.environment_digest, dict(self.method), self.measured_ns])

    def to_json(self) -> dict[str, Any]:
        """Return the record as a JSON value."""
        return asdict(self)


_REAL, _TEXT = maybe(float), maybe(str)
_ENVIRONMENT = Fields(
    {
        "card": str,
        "driver": _TEXT,
        "torch": str,
        "cuda": _TEXT,
        "flags": Fields({"cache_bytes": maybe(int), "power_limit_w": _REAL, "clock_mhz": _REAL, "tf32": maybe(bool)}),
    },
    ("card", "driver", "torch", "cuda", "flags"),
)
_BLOCK = Fields(
    {
        "kind": _TEXT,
        **dict.fromkeys(("call_ns", "call_j", "host_ns", "burst_clock_mhz", "sm_clock_mhz", "workspace_bytes"), _REAL),
    }
)
_RECORD = Fields(
    {
        "key_digest": str,
        "environment_digest": str,
        "method": MappingOf(object),
        **dict.fromkeys(("time_median_ns", "time_low_ns", "time_high_ns"), _REAL),
        **dict.fromkeys(("energy_median_j", "energy_low_j", "energy_high_j", "base_w"), _REAL),
        "blocks": ListOf(_BLOCK),
        "kernels": ListOf(str),
        "status": str,
        "reason": str,
        "measured_ns": int,
        "flops": maybe(int),
        "bytes": maybe(int),
    },
    ("key_digest", "environment_digest", "method", "blocks", "kernels", "status", "reason", "measured_ns"),
)


def environment_from(values: Mapping[str, Any]) -> Environment:
    """Return the environment with these values, from a store or a file.

    Raises:
        ValueError: one is missing or invalid.
    """
    check_shape(dict(values), _ENVIRONMENT, "environment")
    return Environment(**{name: values[name] for name in ("card", "driver", "torch", "cuda", "flags")})


def record_from(values: Mapping[str, Any]) -> Record:
    """Return the record with these values, from a store or a file.

    Raises:
        ValueError: one is missing or invalid.
    """
    check_shape(dict(values), _RECORD, "record")
    if any(block.get("kind") == "energy" and block.get("call_ns") is None for block in values["blocks"]):
        raise ValueError("record: an energy measurement has no call_ns")
    return Record(**{**values, "blocks": tuple(values["blocks"]), "kernels": tuple(values["kernels"])})
