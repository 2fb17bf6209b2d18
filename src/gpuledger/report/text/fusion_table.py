"""The kernels of compiled code as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuledger.analyze.module_paths import without_number
from gpuledger.report.base.phrases import column_unit
from gpuledger.report.base.terminal import BOLD, DIM, MISSING, PLAIN, Cell, Style, TextColumn, TextTable

if TYPE_CHECKING:
    from gpuledger.analyze.step.fusions import FusedKernel

SHARED = "The time of a kernel of several modules is divided among them by the bytes that its parts read and write."


def module_names(kernel: FusedKernel, outside: str) -> list[str]:
    """Return the modules of a kernel. Equal ones of several layers are combined: ``4 × blocks.*.mlp.0``.

    ``outside`` is the label of code outside modules.
    """
    members: dict[str, list[str]] = {}
    for path in kernel.modules:
        *above, last = path.split(".")
        above = list(map(without_number, above))
        last = "*" if last.isdecimal() and above and not kernel.is_shared else last
        members.setdefault(".".join([*above, last]), []).append(path or outside)
    return [paths[0] if len(paths) == 1 else f"{len(paths)} × {name}" for name, paths in members.items()]


def fusion_table(kernels: Sequence[FusedKernel], rows: int, outside: str) -> TextTable:
    """Return the first ``rows`` kernels as a table, then the sum of the others and a total.

    ``outside`` is the label of kernels outside modules.
    """
    unit = column_unit(sum(one.moved_bytes for one in kernels))
    texts = (("by fusion", 0), ("modules", 0), ("nodes", 2), ("lines", 1))
    columns = [TextColumn(title, shrinks=True, optional=place) for title, place in texts]
    columns += [TextColumn(f"moved {unit.name}", right=True, optional=3), TextColumn("ms", right=True)]

    def row(texts: Sequence[str], some: Sequence[FusedKernel], style: Style = PLAIN) -> tuple[Cell, ...]:
        moved_bytes = sum(one.moved_bytes for one in some)
        amounts = (unit.amount(moved_bytes) if moved_bytes else MISSING, f"{sum(o.time_ns for o in some) / 1e6:,.3f}")
        return tuple(Cell(text, style) for text in (*texts, *amounts))

    body = [
        row(
            (
                one.kernel,
                ", ".join(module_names(one, outside)),
                ", ".join(one.nodes),
                ", ".join(one.lines),
            ),
            [one],
        )
        for one in kernels[:rows]
    ]
    if len(kernels) > rows:
        body.append(row((f"… {len(kernels) - rows:,} more", "", "", ""), kernels[rows:], DIM))
    body.append(row(("total", "", "", ""), kernels, BOLD))
    return TextTable(tuple(columns), tuple(body))
