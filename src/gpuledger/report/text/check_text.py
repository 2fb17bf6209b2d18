"""Results of a check, for a terminal and as Markdown for the summary page of a CI run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuledger.analyze.compare.budget import CATEGORY, MODULE, higher_is_worse, unit_of
from gpuledger.analyze.compare.metrics import KINDS
from gpuledger.report.base.markup import markdown_code, markdown_text
from gpuledger.report.base.phrases import share
from gpuledger.report.base.quantities import MORE_COLOR, exactly, quantity
from gpuledger.report.base.terminal import BOLD, DIM, MISSING, PLAIN, Cell, TextColumn, TextTable
from gpuledger.units import device_label

if TYPE_CHECKING:
    from gpuledger.analyze.compare.budget import Gate
    from gpuledger.report.base.terminal import Bar, Terminal


def check_lines(gates: Sequence[Gate], terminal: Terminal) -> list[str]:
    """Return the limits as a table, unmet limits first."""
    columns = (
        TextColumn("", shrinks=True),
        TextColumn("found", right=True),
        TextColumn("limit", right=True, optional=1),
        TextColumn("of limit", right=True, optional=2),
        TextColumn("", shrinks=True),
        TextColumn("", optional=3),
    )
    ordered = sorted(gates, key=lambda gate: gate.ok)
    return TextTable(columns, tuple(_row(gate) for gate in ordered)).lines(terminal)


def check_markdown(run: str, gates: Sequence[Gate]) -> str:
    """Return the limits as a Markdown section, unmet limits first."""
    over = sum(not gate.ok for gate in gates)
    verdict = f"{over} of {len(gates)} limits not met" if over else f"within budget, {len(gates)} limits"
    lines = [
        f"### gpuledger: {markdown_code(run)}: {verdict}",
        "",
        "| figure | found | limit | of limit | | |",
        "| --- | ---: | ---: | ---: | --- | --- |",
    ]
    for gate in sorted(gates, key=lambda gate: gate.ok):
        unit, found = unit_of(gate.limit.key), gate.found
        cells = (
            markdown_text(gate_title(gate)),
            MISSING if found is None else exactly(found.value, unit),
            quantity(gate.limit.value, unit),
            MISSING if found is None else share(found.value, gate.limit.value),
            markdown_text(verdict_of(gate)) if gate.ok else f"**{markdown_text(verdict_of(gate))}**",
            markdown_text(where_of(gate)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def gate_title(gate: Gate) -> str:
    """Return the label of a gate's metric."""
    key = gate.limit.key
    if key in KINDS:
        return KINDS[key].title
    return key.replace(CATEGORY, "").replace("_", " ") if key.startswith(CATEGORY) else key.removeprefix(MODULE)


def verdict_of(gate: Gate) -> str:
    """Return ``ok``, by how much the limit is exceeded, or why there is no result."""
    if gate.over is None:
        return gate.note
    if gate.ok:
        return f"ok, but {gate.note}" if gate.note else "ok"
    word = "over" if higher_is_worse(gate.limit.key) else "under"
    return f"{word} by {quantity(gate.over, unit_of(gate.limit.key))}" + (f"; {gate.note}" if gate.note else "")


def where_of(gate: Gate) -> str:
    """Return rank and device of the value, and the source of the limit."""
    parts = [] if gate.found is None else [f"rank {gate.found.rank}", device_label(gate.found.device_idx)]
    unit = unit_of(gate.limit.key)
    made = f"{quantity(gate.limit.base, unit)} {gate.limit.written}" if gate.limit.base is not None else ""
    return " · ".join(part for part in (*parts, made) if part)


def _row(gate: Gate) -> tuple[str | Cell | Bar, ...]:
    unit, found = unit_of(gate.limit.key), gate.found
    verdict = Cell(verdict_of(gate)) if gate.ok else Cell(verdict_of(gate), color=MORE_COLOR)
    return (
        Cell(gate_title(gate), PLAIN if gate.ok else BOLD),
        MISSING if found is None else quantity(found.value, unit),
        quantity(gate.limit.value, unit),
        MISSING if found is None else share(found.value, gate.limit.value),
        verdict,
        Cell(where_of(gate), DIM),
    )
