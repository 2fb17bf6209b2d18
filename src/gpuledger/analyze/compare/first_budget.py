"""Write a first budget for a run: its values plus some headroom, as a file for the user to edit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.compare.budget import CATEGORY, MODULE, Limit, check
from gpuledger.analyze.compare.metrics import KINDS
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.lifetimes import device_indices
from gpuledger.analyze.memory.tree import OUTSIDE_PATH, ROUNDING_PATH, ModuleNode, module_tree
from gpuledger.analyze.overview.summary import summarize
from gpuledger.errors import UsageError
from gpuledger.model.accounts import ROUNDING
from gpuledger.units import format_bytes, format_joules, format_ns

if TYPE_CHECKING:
    from gpuledger.model.run import Run

FEWEST_REPEATS = 3
_TOP = 3
_LEAST_TOLERANCE = 0.01


@dataclass(frozen=True)
class Measured:
    """One metric in every repetition."""

    key: str
    values: tuple[float, ...]


def write_budget(runs: Sequence[Run], headroom_frac: float) -> str:
    """Return a budget as TOML: exact metrics plus ``headroom_frac``, sampled ones with tolerances.

    Sampled metrics are left out with fewer than :data:`FEWEST_REPEATS` runs of the same program, because their
    variation is unknown. Categories and modules are proposed as comments.

    Raises:
        EmptyRunError: a run has no data.
        UsageError: there are only sampled metrics, and too few runs.
    """
    figures = [figure for key in KINDS if (figure := _measure(runs, key)) is not None]
    names = ", ".join(run.path.name for run in runs)
    if len(runs) < FEWEST_REPEATS and not any(KINDS[figure.key].exact for figure in figures):
        raise UsageError(
            f"{names}: all values vary between runs, and their range needs several runs",
            hint=f"Name {FEWEST_REPEATS} runs or more of the same program",
        )
    lines = [
        f"# Measured in {_comment(names)}, plus {headroom_frac * 100:g} %.",
        "# `gpuledger check RUN --budget FILE` returns exit status 5 when a run exceeds a limit.",
        "",
        "[limits]",
        *(_exact_line(figure, headroom_frac) for figure in figures if KINDS[figure.key].exact),
    ]
    sampled = [figure for figure in figures if not KINDS[figure.key].exact]
    if len(runs) >= FEWEST_REPEATS:
        lines += [f"{figure.key} = {toml_text(_amount(figure.key, _middle(figure)))}" for figure in sampled]
    lines += _proposals(runs, headroom_frac)
    if len(runs) >= FEWEST_REPEATS and sampled:
        lines += ["", "[tolerances]", *(_tolerance_line(figure) for figure in sampled)]
    elif sampled:
        left_out = ", ".join(figure.key for figure in sampled)
        lines += [
            "",
            f"# Not set, because they vary between runs: {left_out}. Set them with `gpuledger budget RUN RUN RUN`.",
        ]
    return "\n".join(lines) + "\n"


def _measure(runs: Sequence[Run], key: str) -> Measured | None:
    """Return one metric of every run; None if a run does not have it."""
    found = [check(run, (Limit(key, 0, ""),))[0].found for run in runs]
    values = tuple(one.value for one in found if one is not None)
    return Measured(key, values) if len(values) == len(runs) else None


def _exact_line(figure: Measured, headroom_frac: float) -> str:
    low, high = min(figure.values), max(figure.values)
    measured = f"{high:,.0f} B" if low == high else f"{low:,.0f} to {high:,.0f} B"
    return f"{figure.key} = {toml_text(_rounded_up(high * (1 + headroom_frac)))}  # measured {measured}"


def _tolerance_line(figure: Measured) -> str:
    """Return a tolerance of twice the range of the repetitions, at least 1 %."""
    apart = (max(figure.values) - min(figure.values)) / _middle(figure) if _middle(figure) else 0.0
    share = math.ceil(max(2 * apart, _LEAST_TOLERANCE) * 1000) / 10
    return f"{figure.key} = {toml_text(f'{share:g} %')}  # {len(figure.values)} runs within {apart:.1%}"


def _middle(figure: Measured) -> float:
    return statistics.median(figure.values)


def _proposals(runs: Sequence[Run], headroom_frac: float) -> list[str]:
    """Return the largest categories and modules at the first run's highest peak as comments."""
    summaries = [(rank, summarize(rank)) for rank in runs[0].ranks if device_indices(rank)]
    if not summaries:
        return []
    rank, _ = max(summaries, key=lambda pair: pair[1].recorded_peak_allocated_bytes)
    peak = find_peak(rank)
    accounts = [one for one in break_down(rank, peak, by=("category",)).accounts if one.category != ROUNDING]
    keys = [f"{CATEGORY}{account.category}" for account in accounts[:_TOP]]
    keys += [f"{MODULE}{node.path}" for node in _outer_modules(module_tree(rank, peak))[:_TOP]]
    figures = [figure for key in keys if (figure := _measure(runs, key)) is not None]
    lines = [
        f"# {toml_text(one.key)} = {toml_text(_rounded_up(max(one.values) * (1 + headroom_frac)))}" for one in figures
    ]
    return ["", "# Memory at the peak, a module with its submodules. Remove a # to set that limit.", *lines]


def _outer_modules(root: ModuleNode) -> list[ModuleNode]:
    """Return the outermost modules that have siblings, largest first."""
    nodes = [node for node in root.children if node.path not in (OUTSIDE_PATH, ROUNDING_PATH)]
    while len(nodes) == 1 and nodes[0].children:
        nodes = list(nodes[0].children)
    return nodes


def _rounded_up(value_bytes: float) -> str:
    """Return bytes as text, rounded up to a whole number of a unit small enough for several digits."""
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value_bytes >= 100 * size:
            return f"{math.ceil(value_bytes / size)} {unit}"
    return f"{math.ceil(value_bytes)} B"


def _amount(key: str, value: float) -> str:
    formats = {"ns": format_ns, "J": format_joules, "B": format_bytes}
    unit = KINDS[key].unit
    if unit == "1":
        return f"{value * 100:.1f} %"
    return formats[unit](value).replace("µ", "u")


def toml_text(text: str) -> str:
    r"""Return ``text`` as a TOML basic string on one line, in ASCII."""
    special = {'"': '\\"', "\\": "\\\\"}
    return (
        '"' + "".join(special.get(c, c if c.isascii() and c.isprintable() else f"\\U{ord(c):08x}") for c in text) + '"'
    )


def _comment(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
