"""Energy windows of the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuledger.report.html.columns import window_rows
from gpuledger.report.html.definitions import of_column
from gpuledger.report.html.sections.section import Page, Section, column, script, table

if TYPE_CHECKING:
    from gpuledger.analyze.view.device_view import DeviceView
    from gpuledger.analyze.view.watched_card import WatchedCard


def _data(source: DeviceView | WatchedCard, page: Page) -> dict[str, Any]:
    return {"windows": window_rows(source.windows, source.origin_ns)}


SECTION = Section(
    name="windows",
    heading="Energy windows",
    scripts=(script("windows.js"),),
    data=_data,
    card_data=_data,
    help={
        "window_energy_j": of_column("Energy", "windows", "energy_j"),
        "window_uncertainty_j": of_column("Uncertainty", "windows", "uncertainty_j"),
        "window_throttled_ns": of_column("Throttled", "windows", "throttled_ns"),
    },
    body=table(
        "windows-body",
        [
            column("Window"),
            column("Start", "amount"),
            column("Duration", "amount"),
            column("Energy", "amount", "window_energy_j"),
            column("±", "amount", "window_uncertainty_j"),
            column("Mean power", "amount"),
            column("Throttled", "amount", "window_throttled_ns"),
        ],
    )
    + """
<p class="hint">Measured between two ticks of the GPU's energy counter. The uncertainty is the jitter of the ticks \
plus the counter's resolution.</p>""",
    is_hidden=True,
)
