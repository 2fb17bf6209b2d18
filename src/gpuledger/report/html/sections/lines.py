"""Source lines at the peak: a flame graph of call paths, and a table of lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuledger.analyze.memory.lines.source_lines import WITHOUT_LINE
from gpuledger.analyze.memory.tree import ROUNDING_PATH
from gpuledger.report.html.definitions import of_column
from gpuledger.report.html.sections.section import Page, Section, column, script, table

if TYPE_CHECKING:
    from gpuledger.analyze.view.view import DeviceView

MOST_LINES = 100


def _data(device: DeviceView, page: Page) -> dict[str, Any]:
    """Return the nodes of the flame graph and the largest lines; both are empty if no block has a line."""
    groups = [group for group in device.source_lines if group.label != ROUNDING_PATH]
    known = any(group.label not in WITHOUT_LINE for group in groups)
    nodes, shown = (device.flame, groups[:MOST_LINES]) if known else ((), [])
    return {
        "flame": {
            "parent": [node.parent for node in nodes],
            "function": [node.function for node in nodes],
            "place": [node.place for node in nodes],
            "bytes": [node.bytes for node in nodes],
            "category": [page.categories.get(node.category, 0) for node in nodes],
        },
        "lines": {
            "label": [group.label for group in shown],
            "bytes": [group.bytes for group in shown],
            "blocks": [group.blocks for group in shown],
            "parts": [[[page.categories[name], size] for name, size in group.by_category] for group in shown],
            "more": len(groups) - len(shown),
        },
    }


_COLUMNS = (
    column("Line", "name", "source_line"),
    column("Bytes", "amount"),
    column("Share", "share"),
    column("Blocks", "count"),
    column("Categories", "split"),
)

_BODY = f"""<p id="flame-trail" class="trail"></p>
<div id="flame" class="flame"></div>
{table("lines-body", _COLUMNS)}
<p id="lines-note" class="caption"></p>"""

SECTION = Section(
    name="lines",
    heading="Source lines at the peak",
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
