"""A card that was only watched, as the page reads it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuledger.analyze.view.report_tree import build_tree
from gpuledger.report.html.columns import differences, power_columns, window_rows
from gpuledger.report.html.provenance import facts_of_rank

if TYPE_CHECKING:
    from gpuledger.analyze.memory.live import I64
    from gpuledger.analyze.view.watched_card import WatchedCard


def card_payload(card: WatchedCard, numbers: dict[str, int]) -> dict[str, Any]:
    """Return one card as the page reads it: a view whose accounts are outside every module."""
    used, moments, peak_at, origin_ns = card.used_bytes, card.moments, card.peak_at, int(card.t_ns[0])
    tree = build_tree((), ())
    return {
        "kind": "card",
        "rank": card.rank.number,
        "device_idx": card.line.device_idx,
        "device_name": card.line.device_name,
        "recorder": "watched",
        "summary": _summary(card, int(used[peak_at])),
        "figures": asdict(card.figures),
        "peak": int(np.searchsorted(moments, peak_at)),
        "notes": list(card.notes),
        "timeline": {
            "t": differences(card.t_ns - origin_ns),
            "index": differences(np.arange(used.size)),
            "categories": [numbers[name] for name in card.categories],
            "bytes": [differences(row) for row in card.bytes],
            "reserved": differences(used),
        },
        "bands": [],
        "instants": _instants(card.t_ns[moments] - origin_ns, moments, used[moments], peak_at),
        "tree": {"path": list(tree.path), "parent": list(tree.parent), "classes": [""], "class_id": [0, 0, 0, 0]},
        "accounts": _accounts(card, moments, tree.outside, numbers),
        "tensors": {"name": [], "module": [], "category": [], "bytes": [], "blocks": [], "more": 0},
        "time": None,
        "bars": [],
        "power": None if card.power is None else power_columns(card.power, origin_ns),
        "windows": window_rows(card.windows, origin_ns),
        "balance": {"card": "", "lines": [], "notes": [], "used_bytes": None, "remainder_bytes": None},
        "findings": [],
        "facts": facts_of_rank(card.rank.manifest, card.line.device_idx),
        "checks": [],
        "oom": [],
    }


def _summary(card: WatchedCard, peak_bytes: int) -> dict[str, Any]:
    return {
        "peak_allocated_bytes": peak_bytes,
        "peak_reserved_bytes": peak_bytes,
        "capacity_bytes": None if card.line.capacity is None else int(card.line.capacity),
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


def _accounts(card: WatchedCard, moments: I64, node: int, numbers: dict[str, int]) -> dict[str, list[int]]:
    """Return one account a category, a run of its own at each moment."""
    places = range(moments.size)
    return {
        "node": differences([node] * len(card.categories)),
        "category": [numbers[name] for name in card.categories],
        "runs": [moments.size] * len(card.categories),
        "first": [*places] * len(card.categories),
        "last": [*places] * len(card.categories),
        "bytes": card.bytes[:, moments].ravel().tolist(),
    }
