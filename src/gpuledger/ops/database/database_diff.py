"""Compare two databases: ratios of time and energy of the same operators."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from gpuledger.errors import EmptyRunError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.contents import Contents
from gpuledger.ops.database.records import Record


@dataclass(frozen=True)
class OperatorChange:
    """One operator in both databases. ``certain``: the two intervals of its time do not overlap."""

    key: OperatorKey
    before: Record
    after: Record

    @property
    def time_ratio(self) -> float:
        """Return the ratio of the times, after / before."""
        assert self.before.time_median_ns is not None
        assert self.after.time_median_ns is not None
        return self.after.time_median_ns / self.before.time_median_ns

    @property
    def energy_ratio(self) -> float | None:
        """Return the ratio of the energies, after / before; None if one is missing."""
        if not self.before.energy_median_j or self.after.energy_median_j is None:
            return None
        return self.after.energy_median_j / self.before.energy_median_j

    @property
    def certain(self) -> bool:
        """Return whether the intervals of the two times do not overlap; False if one is missing."""
        ends = (self.before.time_low_ns, self.before.time_high_ns, self.after.time_low_ns, self.after.time_high_ns)
        if any(end is None for end in ends):
            return False
        low_before, high_before, low_after, high_after = (float(end) for end in ends if end is not None)
        return low_after > high_before or high_after < low_before


@dataclass(frozen=True)
class DatabaseDiff:
    """Common operators of two databases. Environments as text; changes with the largest ratio first."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    only_before: int
    only_after: int
    changes: tuple[OperatorChange, ...]

    @property
    def median_time_ratio(self) -> float:
        """Return the median of the ratios."""
        return median(change.time_ratio for change in self.changes)


def diff_databases(before: Contents, after: Contents) -> DatabaseDiff:
    """Return how the newest measurements of the same operators, by the same method, differ.

    Raises:
        EmptyRunError: the databases have no measured operators in common.
    """
    old, new = _newest(before), _newest(after)
    common = [place for place in old if place in new]
    if not common:
        raise EmptyRunError("the databases have no measured operators in common")
    changes = [OperatorChange(before.keys[place[0]], old[place], new[place]) for place in common]
    changes.sort(key=lambda change: -max(change.time_ratio, 1 / change.time_ratio))
    return DatabaseDiff(
        _environments(before, old.values()),
        _environments(after, new.values()),
        len(old) - len(common),
        len(new) - len(common),
        tuple(changes),
    )


def _newest(contents: Contents) -> dict[tuple[str, str], Record]:
    """Return the newest record that gave a time, by key and mode."""
    found: dict[tuple[str, str], Record] = {}
    for record in sorted(contents.records, key=lambda record: record.measured_ns):
        if record.status == "ok" and record.time_median_ns:
            found[record.key_digest, str(record.method.get("mode"))] = record
    return found


def _environments(contents: Contents, records: Iterable[Record]) -> tuple[str, ...]:
    digests = dict.fromkeys(record.environment_digest for record in records)
    return tuple(environment_text(contents, digest) for digest in digests)


def environment_text(contents: Contents, digest: str) -> str:
    """Return an environment in one line."""
    one = contents.environments[digest]
    words = [one.card, f"driver {one.driver}" if one.driver else "", f"torch {one.torch}"]
    return ", ".join(word for word in [*words, f"CUDA {one.cuda}" if one.cuda else ""] if word)
