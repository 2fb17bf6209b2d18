"""What a report shows of a card that was only watched: its bytes and watts over time, its figures, its windows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.timeline import thin
from gpuledger.analyze.samples.series import PROCESS_SOURCE, Line, read_lines
from gpuledger.analyze.samples.watched import Watched, watched
from gpuledger.report.base.columns import differences, power_columns, read_windows, window_rows
from gpuledger.report.html.provenance import facts_of_rank
from gpuledger.report.html.tree import build_tree

if TYPE_CHECKING:
    from gpuledger.model.run import Rank, Run

I64 = NDArray[np.int64]
POINTS = 4000
INSTANTS = 200
PROGRAM, REST, USED = "program", "rest of the card", "used"


@dataclass(frozen=True)
class CardView:
    """One card of a watched run. ``bytes`` int64[len(categories), n] sum to the card's used bytes at ``t_ns``."""

    rank: Rank
    line: Line
    figures: Watched
    t_ns: I64
    categories: tuple[str, ...]
    bytes: I64
    power: Line | None


def gather_cards(run: Run, ranks: tuple[Rank, ...]) -> tuple[CardView, ...]:
    """Return the cards whose used bytes were read, by rank and device; none where nothing was.

    Source: the tables ``samples``, ``process_samples`` and ``windows``.
    """
    chosen = {rank.number: rank for rank in ranks if rank.table("samples").num_rows}
    lines = [line for line in read_lines([run])[0] if line.rank in chosen]
    figures = {(one.name, one.device_idx): one for one in watched(run)} if lines else {}
    own = [one for one in read_lines([run], per="process")[0] if one.source == PROCESS_SOURCE]
    programs = {(one.rank, one.device_idx): one for one in own}
    power = {(one.rank, one.device_idx): one for one in read_lines([run], "power")[0]}
    return tuple(
        _card_view(
            chosen[line.rank],
            line,
            figures[line.name, line.device_idx],
            programs.get((line.rank, line.device_idx)),
            power.get((line.rank, line.device_idx)),
        )
        for line in lines
    )


def card_payload(view: CardView, numbers: dict[str, int]) -> dict[str, Any]:
    """Return one card as the page reads it: a view whose accounts are outside every module."""
    used = view.bytes.sum(axis=0)
    origin_ns, peak_at = int(view.t_ns[0]), int(np.argmax(used))
    moments = np.unique(np.concatenate((thin(used, view.t_ns, INSTANTS), [peak_at, used.size - 1])))
    tree = build_tree((), ())
    return {
        "kind": "card",
        "rank": view.rank.number,
        "device_idx": view.line.device_idx,
        "device_name": view.line.device_name,
        "recorder": "watched",
        "summary": _summary(view, int(used[peak_at])),
        "figures": asdict(view.figures),
        "peak": int(np.searchsorted(moments, peak_at)),
        "notes": [str(note) for note in (*view.rank.manifest.notes, *view.figures.notes)],
        "timeline": {
            "t": differences(view.t_ns - origin_ns),
            "index": differences(np.arange(used.size)),
            "categories": [numbers[name] for name in view.categories],
            "bytes": [differences(row) for row in view.bytes],
            "reserved": differences(used),
        },
        "bands": [],
        "instants": _instants(view.t_ns[moments] - origin_ns, moments, used[moments], peak_at),
        "tree": {"path": list(tree.path), "parent": list(tree.parent), "classes": [""], "class_id": [0, 0, 0, 0]},
        "accounts": _accounts(view, moments, tree.outside, numbers),
        "tensors": {"name": [], "module": [], "category": [], "bytes": [], "blocks": [], "more": 0},
        "time": None,
        "power": None if view.power is None else power_columns(view.power, origin_ns),
        "windows": window_rows(read_windows(view.rank, view.line.device_idx), origin_ns),
        "balance": {"card": "", "lines": [], "notes": [], "used_bytes": None, "remainder_bytes": None},
        "findings": [],
        "facts": facts_of_rank(view.rank.manifest, view.line.device_idx),
        "checks": [],
        "oom": [],
    }


def _card_view(rank: Rank, line: Line, figures: Watched, program: Line | None, power: Line | None) -> CardView:
    kept = thin(line.values, line.t_ns, POINTS)
    times, used = line.t_ns[kept], np.rint(line.values[kept]).astype(np.int64)
    if program is None:
        return CardView(rank, line, figures, times, (USED,), used[None, :], power)
    mine = np.minimum(_held(program, times), used)
    return CardView(rank, line, figures, times, (PROGRAM, REST), np.stack([mine, used - mine]), power)


def _held(program: Line, times: I64) -> I64:
    """Return the program's bytes at each moment: they are read less often than the card's, and hold until read anew.

    Where two readings in a row would have seen it and did not, the program holds nothing.
    """
    longest_ns = 2 * int(np.median(np.diff(program.t_ns))) if program.t_ns.size > 1 else 0
    place = np.searchsorted(program.t_ns, times, side="right") - 1
    is_fresh = (place >= 0) & (times - program.t_ns[place] <= longest_ns)
    return np.where(is_fresh, np.rint(program.values[place]), 0).astype(np.int64)


def _summary(view: CardView, peak_bytes: int) -> dict[str, Any]:
    return {
        "peak_allocated_bytes": peak_bytes,
        "peak_reserved_bytes": peak_bytes,
        "capacity_bytes": None if view.line.capacity is None else int(view.line.capacity),
        "step_time": {"count": 0, "median_ns": None, "p95_ns": None, "source": ""},
        "instant": {"step": 0},
    }


def _instants(t_ns: I64, moments: I64, used: I64, peak_at: int) -> dict[str, list[Any]]:
    count = moments.size
    labels = ["peak" if at == peak_at else "" for at in moments.tolist()]
    labels[-1] = labels[-1] or "end"
    return {
        "index": differences(moments),
        "t": differences(t_ns),
        "label": labels,
        "step": [0] * count,
        "phase": [""] * count,
        "module": [""] * count,
        **{name: used.tolist() for name in ("allocated", "active", "reserved")},
    }


def _accounts(view: CardView, moments: I64, node: int, numbers: dict[str, int]) -> dict[str, list[int]]:
    """Return one account a category, a run of its own at each moment."""
    places = range(moments.size)
    return {
        "node": differences([node] * len(view.categories)),
        "category": [numbers[name] for name in view.categories],
        "runs": [moments.size] * len(view.categories),
        "first": [*places] * len(view.categories),
        "last": [*places] * len(view.categories),
        "bytes": view.bytes[:, moments].ravel().tolist(),
    }
