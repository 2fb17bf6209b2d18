"""Notes on the numbers of this run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuledger.report.html.definitions import Definition
from gpuledger.report.html.sections.section import Page, Section, script

if TYPE_CHECKING:
    from gpuledger.analyze.view.device_view import DeviceView
    from gpuledger.analyze.view.watched_card import WatchedCard


def _data(device: DeviceView, page: Page) -> dict[str, Any]:
    if page.view.rank_set is not None:
        return {"notes": list(page.view.notes)}
    notes = (*page.view.problems, *page.view.run.manifest.notes, *device.summary.notes, *device.summary.outside_notes)
    return {"notes": list(dict.fromkeys(notes))}


def _card_data(card: WatchedCard, page: Page) -> dict[str, Any]:
    return {"notes": [*card.notes]}


SECTION = Section(
    name="notes",
    heading="Notes",
    scripts=(script("notes.js"),),
    data=_data,
    card_data=_card_data,
    help={
        "notes": Definition("Notes", "limits and problems of this recording", "the run"),
    },
    body='<ul id="notes" class="notes"></ul>',
    is_hidden=True,
)
