"""Compiled code: compile time, regions that were compiled again or not at all, graph breaks, and a table of kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuledger.analyze.memory.tree import OUTSIDE_PATH
from gpuledger.report.html.definitions import Definition
from gpuledger.report.html.sections.section import Page, Section, column, script, table
from gpuledger.report.text.compile_text import compilation_texts
from gpuledger.report.text.fusion_table import SHARED, module_names

if TYPE_CHECKING:
    from gpuledger.analyze.step.fusions import FusedKernel
    from gpuledger.analyze.view.device_view import DeviceView

MOST_KERNELS = 100
MOST_LINES = 50
"""Maximum number of lines of each kind above the table."""


def _data(device: DeviceView, page: Page) -> dict[str, Any]:
    """Return what was compiled, and the longest kernels; all of it is empty if nothing was compiled."""
    texts = compilation_texts(device.rank.manifest.compilation, MOST_LINES)
    kernels = device.fusions[:MOST_KERNELS]
    return {
        "compiled": {
            "summary": texts[:1],
            "lines": [text[:1].upper() + text[1:] for text in texts[1:]],
            "kernels": [_kernel(one) for one in kernels],
            "step_ns": sum(one.time_ns for one in device.fusions),
            "more": len(device.fusions) - len(kernels),
            "note": SHARED if any(one.is_shared for one in kernels) else "",
        }
    }


def _kernel(one: FusedKernel) -> dict[str, Any]:
    return {
        "name": one.kernel,
        "modules": module_names(one, OUTSIDE_PATH),
        "nodes": list(one.nodes),
        "lines": list(one.lines),
        "bytes": one.moved_bytes,
        "time_ns": one.time_ns,
    }


_COLUMNS = (
    column("Kernel", "name", "compiled_kernel"),
    column("Modules", "text"),
    column("Graph nodes", "text", "compiled_nodes"),
    column("Source lines", "text"),
    column("Bytes moved", "amount", "compiled_bytes"),
    column("Time of a step", "time", "compiled_time"),
    column("Share", "share"),
)

_SOURCE = "Inductor's nodes at compilation"

SECTION = Section(
    name="compiled",
    heading="Compiled code",
    scripts=(script("compiled.js"),),
    data=_data,
    help={
        "compiled_kernel": Definition(
            "Kernel", "Triton kernel or library call of code that Inductor generated", _SOURCE
        ),
        "compiled_nodes": Definition("Graph nodes", "operations of the program that the kernel computes", _SOURCE),
        "compiled_bytes": Definition("Bytes moved", "bytes that one call of the kernel reads and writes", _SOURCE),
        "compiled_time": Definition(
            "Time of a step", "sum of the kernel's calls in one step", "Kineto (CUPTI on a GPU)"
        ),
    },
    body=f"""<p id="compiled-summary"></p>
<ul id="compiled-lines"></ul>
{table("compiled-body", _COLUMNS, frame_id="compiled-table")}
<p id="compiled-note" class="caption"></p>""",
    is_hidden=True,
)
