"""Source lines: a flame graph of call paths at the peak, and a table of lines with bytes, time and energy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuledger.analyze.memory.lines.source_lines import NO_LINE, WITHOUT_LINE
from gpuledger.analyze.memory.tree import ROUNDING_PATH
from gpuledger.analyze.step.side_by_side import IDLE_LABEL
from gpuledger.report.html.definitions import of_column
from gpuledger.report.html.sections.section import Page, Section, column, script, table

if TYPE_CHECKING:
    from gpuledger.analyze.memory.groups import Group
    from gpuledger.analyze.view.device_view import DeviceView

MOST_LINES = 100


def _data(device: DeviceView, page: Page) -> dict[str, Any]:
    """Return the nodes of the flame graph and the largest lines; both are empty if nothing has a line."""
    groups = {group.label: group for group in device.source_lines}
    lines = [line for line in device.line_amounts if line.label not in (ROUNDING_PATH, IDLE_LABEL)]
    known = any(line.label not in (*WITHOUT_LINE, NO_LINE) for line in lines)
    nodes, shown = (device.flame, lines[:MOST_LINES]) if known else ((), [])
    return {
        "flame": {
            "parent": [node.parent for node in nodes],
            "function": [node.function for node in nodes],
            "place": [node.place for node in nodes],
            "bytes": [node.bytes for node in nodes],
            "category": [page.categories.get(node.category, 0) for node in nodes],
        },
        "lines": {
            "label": [line.label for line in shown],
            "bytes": [line.bytes or 0 for line in shown],
            "time_ns": [line.time_ns for line in shown],
            "energy_j": [line.energy_j for line in shown],
            "blocks": [groups[line.label].blocks if line.label in groups else 0 for line in shown],
            "parts": [_parts(groups.get(line.label), page) for line in shown],
            "more": len(lines) - len(shown),
        },
    }


def _parts(group: Group | None, page: Page) -> list[list[int]]:
    return [] if group is None else [[page.categories[name], size] for name, size in group.by_category]


_COLUMNS = (
    column("Line", "name", "source_line"),
    column("Bytes", "amount"),
    column("Share", "share"),
    column("Time of a step", "time"),
    column("Energy of a step", "energy"),
    column("Blocks", "count"),
    column("Categories", "split"),
)

_BODY = f"""<p id="flame-trail" class="trail"></p>
<div id="flame" class="flame"></div>
{table("lines-body", _COLUMNS)}
<p id="lines-note" class="caption"></p>"""

SECTION = Section(
    name="lines",
    heading="Source lines",
    scripts=(script("lines.js"),),
    data=_data,
    help={
        "source_line": of_column(
            "Source line",
            "blocks",
            "stack_id",
            "innermost line of the allocation's Python stack that is not in PyTorch or Python's standard library; in "
            "backward, of the forward call",
        )
    },
    body=_BODY,
    is_hidden=True,
)
