"""Budgets: limits for a run's metrics, and the check of a run against them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.compare.comparable import compare_ranks, compare_runs, own_notes, rank_notes, unfinished
from gpuledger.analyze.compare.metrics import KINDS, Metric, measure, metric_devices
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.lifetimes import device_indices
from gpuledger.analyze.memory.tree import ModuleNode, module_tree
from gpuledger.analyze.step.steps import BUSY_FRAC
from gpuledger.errors import EmptyRunError, InputError, UsageError, in_option
from gpuledger.files.reading import parse_toml
from gpuledger.model.accounts import CATEGORIES, ROUNDING
from gpuledger.units import parse_bytes, parse_duration_ns, parse_frac, parse_joules

if TYPE_CHECKING:
    from gpuledger.model.run import Rank, Run

CATEGORY, MODULE = "category:", "module:"
DEFAULT_ALLOWED = {"peak_allocated_bytes": "+0%"}
"""Default of ``--against``. No tolerance is needed, because the same program allocates the same bytes."""
_TABLES = ("limits", "tolerances")
_PARSERS: dict[str, Callable[[str], float]] = {
    "B": parse_bytes,
    "ns": parse_duration_ns,
    "J": parse_joules,
    "1": parse_frac,
}


@dataclass(frozen=True)
class Limit:
    """One limit of a budget. ``key`` is a metric, ``category:NAME`` or ``module:PATH`` (including its descendants).

    ``value`` is in the key's unit and includes the tolerance. ``written`` is the user's text. ``base`` is the value of
    the reference run, if there is one, and ``base_spread`` its variation from step to step, if that is known.
    """

    key: str
    value: float
    written: str
    base: float | None = None
    base_spread: float | None = None


@dataclass(frozen=True)
class WorstValue:
    """The worst value of a run for one key: its place, its source, and its variation within the run."""

    value: float
    rank: int
    device_idx: int
    source: str
    spread: float | None


@dataclass(frozen=True)
class Gate:
    """One limit and the run's value. If ``found`` is None, ``note`` says why, and the limit is not met.

    ``within_noise``: the value differs from that of the reference run by no more than the steps of the runs vary, or it
    is a time on a CPU that was busy with other work.
    """

    limit: Limit
    found: WorstValue | None
    note: str
    within_noise: bool = False

    @property
    def over(self) -> float | None:
        """Return by how much the limit is exceeded, in the unit; 0 if it is met, None if nothing was measured."""
        if self.found is None:
            return None
        if self.within_noise:
            return 0.0
        beyond = self.found.value - self.limit.value
        return max(beyond if higher_is_worse(self.limit.key) else -beyond, 0.0)

    @property
    def ok(self) -> bool:
        """Return whether the run meets the limit."""
        return self.over == 0


def unit_of(key: str) -> str:
    """Return the unit of a key: B, ns, J or 1."""
    return KINDS[key].unit if key in KINDS else "B"


def higher_is_worse(key: str) -> bool:
    """Return True if the limit is a maximum, False if it is a minimum."""
    return key not in KINDS or KINDS[key].higher_is_worse


def parse_budget(text: str, name: str) -> tuple[Limit, ...]:
    """Return the limits of a budget, in its order.

    Args:
        text: TOML with a table ``limits``, and ``tolerances`` for sampled metrics.
        name: Name of the budget in errors.

    Raises:
        InputError: not TOML, an unknown key or unit, or a sampled metric without a tolerance.
    """
    document = parse_toml(text, name)
    for key in document:
        if key not in _TABLES:
            raise _unknown(name, key, _TABLES, f"Use the tables {' and '.join(_TABLES)}")
        if not isinstance(document[key], dict):
            raise InputError(f"{name}: {key}: expected a table", hint=f"Write a table: [{key}]")
    limits, tolerances = (document.get(table, {}) for table in _TABLES)
    if not limits:
        raise InputError(
            f"{name}: no limits", hint='Write for example:\n        [limits]\n        peak_allocated_bytes = "2 GiB"'
        )
    _check_keys(name, [*limits, *tolerances])
    for key in tolerances:
        if key not in limits:
            raise InputError(f"{name}: tolerances: {key}: no limit has this name")
    return tuple(_limit(name, key, value, tolerances.get(key)) for key, value in limits.items())


def parse_allowed(text: str) -> dict[str, str]:
    """Return key -> allowed increase from a text such as ``peak_allocated_bytes=+2%,step_energy_j=+3%``.

    Raises:
        UsageError: not of this form, or an unknown key.
    """
    allowed: dict[str, str] = {}
    for part in text.split(","):
        key, equals, amount = part.strip().partition("=")
        if not equals or not amount.strip():
            raise UsageError(
                f"--allow {part}: expected NAME=AMOUNT", hint="For example --allow peak_allocated_bytes=+2%"
            )
        try:
            _check_keys("--allow", [key.strip()])
        except InputError as error:
            raise UsageError(error.message, hint=error.hint) from error
        allowed[key.strip()] = amount.strip()
    return allowed


def limits_against(base: Run, allowed: Mapping[str, str]) -> tuple[Limit, ...]:
    """Return the limits given by the values of ``base`` and the ``allowed`` increases.

    Args:
        base: The reference run.
        allowed: Key -> ``+2%`` of the reference value, or an amount such as ``+200MiB``.

    Raises:
        UsageError: an amount cannot be parsed, or ``base`` does not have the metric.
    """
    figures, limits = _Figures(base), []
    for key, amount in allowed.items():
        found = figures.find(key)
        if found is None:
            raise UsageError(f"--allow {key}: {base.path.name} does not have this value")
        more = _allowance(key, amount, found.value)
        value = found.value + (more if higher_is_worse(key) else -more)
        limits.append(Limit(key, value, amount, found.value, found.spread))
    return tuple(limits)


def check(run: Run, limits: tuple[Limit, ...]) -> tuple[Gate, ...]:
    """Return each limit with the worst value of any rank and device; only GPUs if there are any.

    Raises:
        EmptyRunError: nothing was recorded.
    """
    figures = _Figures(run)
    return tuple(_gate(limit, figures.find(limit.key)) for limit in limits)


def check_notes(run: Run, base: Run | None) -> tuple[str, ...]:
    """Return notes for the reader of a check: the run's own notes, and its differences from the reference run."""
    if base is None:
        notes = [*unfinished(run), *(note for rank in run.ranks for note in rank_notes(rank))]
    else:
        pairs = list(zip(base.ranks, run.ranks, strict=False))
        notes = [*compare_runs(base, run, len(pairs)), *(note for pair in pairs for note in compare_ranks(*pair))]
        notes += own_notes(base, run)
    return tuple(dict.fromkeys(notes))


def _gate(limit: Limit, found: WorstValue | None) -> Gate:
    if found is None:
        missing = "no such module" if limit.key.startswith(MODULE) else "not measured"
        return Gate(limit, None, f"{missing} in this run")
    gate = Gate(limit, found, "")
    if limit.base is None or (limit.key in KINDS and KINDS[limit.key].exact) or limit.key not in KINDS:
        return gate
    spreads = [one for one in (found.spread, limit.base_spread) if one is not None]
    if gate.ok:
        varies = any(one > abs(limit.value - limit.base) for one in spreads)
        return replace(gate, note="the steps vary by more than the limit allows" if varies else "")
    if found.device_idx < 0 and unit_of(limit.key) == "ns" and _was_busy(limit, found):
        return replace(gate, note="the host was busy, so times cannot be compared", within_noise=True)
    if abs(found.value - limit.base) <= max(spreads, default=0.0):
        return replace(gate, note="the difference is within noise", within_noise=True)
    return gate if spreads else replace(gate, note="noise unknown")


def _was_busy(limit: Limit, found: WorstValue) -> bool:
    """Return whether the CPU had other work during one of the two runs."""
    sides = ((limit.base_spread, limit.base), (found.spread, found.value))
    return any(spread is not None and spread > BUSY_FRAC * (value or 0.0) for spread, value in sides)


class _Figures:
    """Looks up values in every rank and device of a run. Caches what was read."""

    def __init__(self, run: Run) -> None:
        self.places = [(rank, device) for rank in run.ranks for device in metric_devices(rank)]
        if not self.places:
            raise EmptyRunError(f"{run.path.name}: nothing was recorded", hint="See why with: gpuledger show RUN")
        cards = [(rank, device) for rank, device in self.places if device >= 0]
        self.places = cards or self.places
        self._metrics: dict[tuple[int, int], dict[str, Metric]] = {}

    def find(self, key: str) -> WorstValue | None:
        """Return the worst value of ``key``; None if no rank has it."""
        found = [one for rank, device in self.places if (one := self._find(rank, device, key)) is not None]
        worst = max if higher_is_worse(key) else min
        return worst(found, key=lambda one: one.value, default=None)

    def _find(self, rank: Rank, device_idx: int, key: str) -> WorstValue | None:
        if key not in KINDS:
            size = _bytes_at_peak(rank, device_idx, key)
            return None if size is None else WorstValue(size, rank.number, device_idx, "allocator's history", None)
        place = rank.number, device_idx
        if place not in self._metrics:
            self._metrics[place] = measure(rank, device_idx)
        metric = self._metrics[place].get(key)
        return None if metric is None else WorstValue(metric.value, *place, metric.source, metric.spread)


def _bytes_at_peak(rank: Rank, device_idx: int, key: str) -> int | None:
    """Return the bytes of a category or a module at the peak; None without blocks or without such a module."""
    if device_idx not in device_indices(rank):
        return None
    peak = find_peak(rank, device_idx)
    if key.startswith(CATEGORY):
        accounts = break_down(rank, peak, by=("category",)).accounts
        return sum(account.bytes for account in accounts if account.category == key.removeprefix(CATEGORY))
    path = key.removeprefix(MODULE)
    for node in _nodes(module_tree(rank, peak)):
        if node.path == path:
            return node.total_bytes
    return 0 if path in rank.table("modules", ("path",)).column(0).to_pylist() else None


def _nodes(root: ModuleNode) -> Iterator[ModuleNode]:
    waiting = list(root.children)
    while waiting:
        node = waiting.pop()
        waiting += node.children
        yield node


def _limit(name: str, key: str, value: Any, tolerance: Any) -> Limit:
    amount = _read(name, key, value, _PARSERS[unit_of(key)])
    if tolerance is None:
        if key in KINDS and not KINDS[key].exact:
            raise InputError(
                f"{name}: {key}: a measured value needs a tolerance",
                hint=f'Write [tolerances] {key} = "5 %", or measure it with: gpuledger budget RUN RUN RUN',
            )
        return Limit(key, amount, str(value))
    share = _read(name, f"tolerances: {key}", tolerance, parse_frac)
    wider = amount * (1 + share if higher_is_worse(key) else 1 - share)
    return Limit(key, wider, f"{value} ± {tolerance}")


def _read(name: str, key: str, value: Any, parse: Callable[[str], float]) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{name}: {key}: expected a number, found {type(value).__name__}")
    if not isinstance(value, str):
        if not 0 <= value < float("inf"):
            raise InputError(f"{name}: {key}: {value}: expected 0 or more")
        return value
    try:
        return parse(value)
    except UsageError as error:
        raise InputError(f"{name}: {key}: {error.message}", hint=error.hint) from error


def _allowance(key: str, amount: str, base: float) -> float:
    number = amount.removeprefix("+").strip()
    with in_option(f"--allow {key}:"):
        if number.endswith("%"):
            return parse_frac(number) * base
        if unit_of(key) == "1":
            raise UsageError(f"{amount!r}: expected a percentage", hint="For example +2%")
        return _PARSERS[unit_of(key)](number)


def _check_keys(name: str, keys: list[str]) -> None:
    for key in keys:
        if key.startswith(CATEGORY):
            category = key.removeprefix(CATEGORY)
            if category not in (*CATEGORIES, ROUNDING):
                raise _unknown(name, key, [f"{CATEGORY}{one}" for one in (*CATEGORIES, ROUNDING)], "")
        elif not (key.startswith(MODULE) and key != MODULE) and key not in KINDS:
            raise _unknown(name, key, list(KINDS), f"Use one of {', '.join(KINDS)}, category:NAME or module:PATH")


def _unknown(name: str, key: str, known: tuple[str, ...] | list[str], hint: str) -> InputError:
    near = get_close_matches(key, known, 1)
    return InputError(f"{name}: unknown key {key}", hint=f"Did you mean {near[0]}?" if near else hint or None)
