"""Budgets: what a run may take, and which of its figures take more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.compare.comparable import compare_ranks, compare_runs, own_notes, rank_notes, unfinished
from gpuledger.analyze.compare.metrics import KINDS, Metric, measure, metric_devices
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.live import device_indices
from gpuledger.analyze.memory.tree import ModuleNode, module_tree
from gpuledger.errors import EmptyRunError, InputError, UsageError
from gpuledger.files.reading import parse_toml
from gpuledger.model.accounts import CATEGORIES, ROUNDING
from gpuledger.units import parse_bytes, parse_duration_ns, parse_frac, parse_joules

if TYPE_CHECKING:
    from gpuledger.model.run import Rank, Run

CATEGORY, MODULE = "category:", "module:"
DEFAULT_ALLOWED = {"peak_allocated_bytes": "+0%"}
"""What ``--against`` allows by itself: the allocator counts, so the same program gives the same bytes."""
_TABLES = ("limits", "tolerances")
_PARSERS: dict[str, Callable[[str], float]] = {
    "B": parse_bytes,
    "ns": parse_duration_ns,
    "J": parse_joules,
    "1": parse_frac,
}


@dataclass(frozen=True)
class Limit:
    """One line of a budget: ``key`` is a metric, ``category:NAME`` or ``module:PATH`` (all below it included).

    ``value`` is in the key's unit and holds the tolerance already; ``written`` is how the user put it. ``base`` is what
    the run that is the measure has, where there is one.
    """

    key: str
    value: float
    written: str
    base: float | None = None


@dataclass(frozen=True)
class Found:
    """The worst figure of a run under one key: where, from what source, and how far it moves by itself."""

    value: float
    rank: int
    device_idx: int
    source: str
    spread: float | None


@dataclass(frozen=True)
class Gate:
    """One limit and what the run has. Where ``found`` is None, ``note`` says why, and the gate is not met."""

    limit: Limit
    found: Found | None
    note: str

    @property
    def over(self) -> float | None:
        """Return by how much the limit is passed, in the unit; 0 where it is kept, None where nothing was measured."""
        if self.found is None:
            return None
        beyond = self.found.value - self.limit.value
        return max(beyond if higher_is_worse(self.limit.key) else -beyond, 0.0)

    @property
    def ok(self) -> bool:
        """Return whether the run keeps within the limit."""
        return self.over == 0


def unit_of(key: str) -> str:
    """Return the unit of a key: B, ns, J or 1."""
    return KINDS[key].unit if key in KINDS else "B"


def higher_is_worse(key: str) -> bool:
    """Return whether a limit is the most that may be; else it is the least."""
    return key not in KINDS or KINDS[key].higher_is_worse


def parse_budget(text: str, name: str) -> tuple[Limit, ...]:
    """Return the limits of a budget, in its order.

    Args:
        text: TOML with a table ``limits`` and, for figures that are sampled, ``tolerances``.
        name: What the budget is called in errors.

    Raises:
        InputError: not TOML, an unknown key or unit, or a sampled figure without a tolerance.
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
    """Return what ``peak_allocated_bytes=+2%,step_energy_j=+3%`` allows, by key.

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
    """Return the limits that ``base`` and what is ``allowed`` beyond it set.

    Args:
        base: The run that is the measure.
        allowed: Key -> ``+2%`` of the base's figure, or an amount such as ``+200MiB``.

    Raises:
        UsageError: an amount cannot be read, or ``base`` does not have the figure.
    """
    figures, limits = _Figures(base), []
    for key, amount in allowed.items():
        found = figures.find(key)
        if found is None:
            raise UsageError(f"--allow {key}: {base.path.name} does not have this value")
        more = _allowance(key, amount, found.value)
        value = found.value + (more if higher_is_worse(key) else -more)
        limits.append(Limit(key, value, amount, found.value))
    return tuple(limits)


def check(run: Run, limits: tuple[Limit, ...]) -> tuple[Gate, ...]:
    """Return each limit with the worst figure of any rank and device; GPUs alone where there is one.

    Raises:
        EmptyRunError: nothing was recorded.
    """
    figures = _Figures(run)
    return tuple(_gate(limit, figures.find(limit.key)) for limit in limits)


def check_notes(run: Run, base: Run | None) -> tuple[str, ...]:
    """Return what a reader of a check should know: what the run notes of itself, and how it is unlike its base."""
    if base is None:
        notes = [*unfinished(run), *(note for rank in run.ranks for note in rank_notes(rank))]
    else:
        pairs = list(zip(base.ranks, run.ranks, strict=False))
        notes = [*compare_runs(base, run, len(pairs)), *(note for pair in pairs for note in compare_ranks(*pair))]
        notes += own_notes(base, run)
    return tuple(dict.fromkeys(notes))


def _gate(limit: Limit, found: Found | None) -> Gate:
    if found is None:
        missing = "no such module" if limit.key.startswith(MODULE) else "not measured"
        return Gate(limit, None, f"{missing} in this run")
    varies = limit.base is not None and found.spread is not None and found.spread > abs(limit.value - limit.base)
    return Gate(limit, found, "the steps of this run vary by more than the limit allows" if varies else "")


class _Figures:
    """Looks figures up in every rank and device of a run, and keeps what was read."""

    def __init__(self, run: Run) -> None:
        self.places = [(rank, device) for rank in run.ranks for device in metric_devices(rank)]
        if not self.places:
            raise EmptyRunError(f"{run.path.name}: nothing was recorded", hint="See why with: gpuledger show RUN")
        cards = [(rank, device) for rank, device in self.places if device >= 0]
        self.places = cards or self.places
        self._metrics: dict[tuple[int, int], dict[str, Metric]] = {}

    def find(self, key: str) -> Found | None:
        """Return the worst figure under ``key``; None where no rank has it."""
        found = [one for rank, device in self.places if (one := self._find(rank, device, key)) is not None]
        worst = max if higher_is_worse(key) else min
        return worst(found, key=lambda one: one.value, default=None)

    def _find(self, rank: Rank, device_idx: int, key: str) -> Found | None:
        if key not in KINDS:
            size = _bytes_at_peak(rank, device_idx, key)
            return None if size is None else Found(size, rank.number, device_idx, "allocator's history", None)
        place = rank.number, device_idx
        if place not in self._metrics:
            self._metrics[place] = measure(rank, device_idx)
        metric = self._metrics[place].get(key)
        return None if metric is None else Found(metric.value, *place, metric.source, metric.spread)


def _bytes_at_peak(rank: Rank, device_idx: int, key: str) -> int | None:
    """Return what a category or a module holds at the peak; None where there are no blocks or no such module."""
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
    if number.endswith("%"):
        return parse_frac(number) * base
    if unit_of(key) == "1":
        raise UsageError(f"--allow {key}={amount}: expected a percentage such as +2%")
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
