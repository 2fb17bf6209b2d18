"""A report's data in the form that the page reads: JSON, compressed and base64-encoded, with differences for columns.

The same run gives the same text, byte for byte. Times are ns since the start of the recording, because a double cannot
represent an absolute time in ns.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuledger.analyze.memory.empty import because, why_empty
from gpuledger.errors import EmptyRunError
from gpuledger.model.accounts import ROUNDING
from gpuledger.report.base.colors import category_color, phase_color, phase_order, stack_order
from gpuledger.report.html.amount_columns import phases_of
from gpuledger.report.html.provenance import facts_of_run
from gpuledger.report.html.sections.registry import SECTIONS, definitions
from gpuledger.report.html.sections.section import Page, Section
from gpuledger.report.text.ranks_text import rank_set_entries

if TYPE_CHECKING:
    from gpuledger.analyze.ranks.rank_set import RankSet
    from gpuledger.analyze.view.device_view import DeviceView
    from gpuledger.analyze.view.view import RunView
    from gpuledger.analyze.view.watched_card import WatchedCard

FORMAT = 1
REPORT_PARTS = (
    *("summary", "timeline", "bands", "modules", "account_series", "tensors", "balance", "findings", "windows"),
    *("times", "parts", "energy", "rates", "overhead", "source_lines", "line_amounts", "flame", "fusions"),
)
"""Parts of a device that are computed from its tables; the other parts are computed from these."""


def _ranks(ranks: RankSet) -> dict[str, Any]:
    """Return all ranks together: sentences, and bytes by category of each line."""
    shown = [place for place, one in enumerate(ranks.categories) if one.name != ROUNDING]
    return {
        "entries": [[label, list(texts)] for label, texts in rank_set_entries(ranks)],
        "categories": [
            {"name": ranks.categories[place].name, "color": category_color(ranks.categories[place].name)}
            for place in shown
        ],
        "lines": [[one.rank, one.device_idx, one.coordinate, one.recorded_peak_allocated_bytes] for one in ranks.lines],
        "bytes": [ranks.matrix[place] for place in shown],
        "outliers": sorted({one.rank for one in ranks.outliers}),
    }


def encode(payload: dict[str, Any]) -> str:
    """Return ``payload`` as JSON, gzip-compressed, in base64, which has no character that could end a script."""
    text = json.dumps(payload, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("ascii"), compresslevel=6, mtime=0)).decode("ascii")


def build_payload(view: RunView, sections: Sequence[Section] = SECTIONS) -> dict[str, Any]:
    """Return the JSON object that the page reads.

    Raises:
        EmptyRunError: no rank has a block or a sample of a GPU's memory.
        ValueError: two sections have the same key, or define the same term.
    """
    if not view.devices and not view.cards:
        raise EmptyRunError(
            f"{view.run.path.name}: no allocation was recorded and no GPU was read, there is nothing to report",
            hint=because(why_empty(view.run.ranks), view.problems),
        )
    power = view.power
    view.compute(REPORT_PARTS)
    categories = _categories(view)
    phases = phase_order(phases_of(spent for one in view.devices for spent in (one.time_amounts, one.energy_amounts)))
    page = Page(view, power, _positions(categories), _positions(phases))
    return {
        "format": FORMAT,
        "name": view.run.name,
        "facts": facts_of_run(view.run),
        "categories": [{"key": name, "color": category_color(name)} for name in categories],
        "definitions": {key: asdict(definition) for key, definition in definitions(sections).items()},
        "phases": [{"key": name, "color": phase_color(name)} for name in phases],
        "rank_set": None if view.rank_set is None else _ranks(view.rank_set),
        "views": [
            *(_device(device, page, sections) for device in view.devices),
            *(_card(card, page, sections) for card in view.cards),
        ],
    }


def _positions(names: Sequence[str]) -> dict[str, int]:
    return {name: position for position, name in enumerate(names)}


def _categories(view: RunView) -> tuple[str, ...]:
    """Return every category of any device or GPU, in stacking order."""
    found = {ROUNDING} if view.devices else set()
    for card in view.cards:
        found |= set(card.categories)
    for one in view.devices:
        series = one.account_series
        found |= set(one.timeline.categories) | {account.category for account in one.tensors.accounts}
        found |= {series.categories[code] for code in np.unique(series.category).tolist()}
    return stack_order(tuple(found))


def _device(device: DeviceView, page: Page, sections: Sequence[Section]) -> dict[str, Any]:
    payload = {
        "kind": "breakdown",
        "rank": device.rank.number,
        "device_idx": device.device_idx,
        "device_name": device.summary.device_name,
        "recorder": device.summary.recorder,
        "without": [],
    }
    return _merged(payload, {one.name: one.data(device, page) for one in sections if one.data is not None})


def _card(card: WatchedCard, page: Page, sections: Sequence[Section]) -> dict[str, Any]:
    payload = {
        "kind": "card",
        "rank": card.rank.number,
        "device_idx": card.line.device_idx,
        "device_name": card.line.device_name,
        "recorder": "watched",
        "without": [one.name for one in sections if one.data is not None and one.card_data is None],
    }
    return _merged(payload, {one.name: one.card_data(card, page) for one in sections if one.card_data is not None})


def _merged(payload: dict[str, Any], by_section: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return ``payload`` with the keys of every section.

    Raises:
        ValueError: a section has a key that is already in use.
    """
    for name, data in by_section.items():
        if twice := payload.keys() & data.keys():
            raise ValueError(f"section {name}: {', '.join(sorted(twice))}: already in the payload")
        payload = {**payload, **data}
    return payload
