"""A section of the report as somebody may add one: a Python entry and a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuledger.report.html.definitions import Definition
from gpuledger.report.html.sections.section import Section

if TYPE_CHECKING:
    from pathlib import Path

TOY_SCRIPT = """registerSection("toy", (view) => {
  byId("toy").replaceChildren(term("Toy blocks", "toy_blocks"), ` ${view.toy_blocks}`);
});
"""


def toy_section(directory: Path) -> Section:
    """Return a section whose script is written to ``directory``."""
    file = directory / "toy.js"
    file.write_text(TOY_SCRIPT, encoding="utf-8")
    return Section(
        name="toy",
        heading="Toy & play",
        scripts=(file,),
        data=lambda device, page: {"toy_blocks": device.summary.peak_allocated_bytes},
        help={"toy_blocks": Definition("Toy blocks", "what a toy holds", "the test")},
    )
