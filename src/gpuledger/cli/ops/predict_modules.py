"""Rows of modules for ``gpuledger ops predict``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.cli.common import print_json, print_lines
from gpuledger.cli.ops.common import table_lines
from gpuledger.model.run_directory import MANIFEST, SUFFIX
from gpuledger.units import DASH, format_frac, format_joules, format_ns

if TYPE_CHECKING:
    from gpuledger.ops.predict.modules import ModuleCost


def is_run(text: str) -> bool:
    """Return whether ``text`` names a recorded run. The suffix can be omitted."""
    return any((Path(place) / MANIFEST).is_file() for place in (text, text + SUFFIX))


def print_run_modules(run: str, gpu: str, *, as_json: bool) -> None:
    """Print what the modules of a recorded run take on another GPU, of its first rank."""
    from gpuledger.ops.predict.modules import modules_of_run
    from gpuledger.services.runs import open_run

    found = modules_of_run(open_run(run).ranks[0], gpu)
    if as_json:
        print_json({**vars(found), "modules": [vars(module) for module in found.modules]})
        return
    print_lines(
        [
            f"from {found.source} to {found.target}, per step",
            f"work known for {format_frac(found.known_frac)} of the kernel time; the rest scales with the bandwidth",
            *module_lines(found.modules),
        ]
    )


def module_lines(modules: Sequence[ModuleCost]) -> list[str]:
    """Return a table with a row for each module."""
    from gpuledger.report.base.terminal import TextColumn

    titles = ("module", "recorded", "time", "energy")
    columns = [TextColumn(title, right=place > 0, shrinks=place == 0) for place, title in enumerate(titles)]
    rows = [
        (
            one.module,
            DASH if one.recorded_ns is None else format_ns(one.recorded_ns),
            format_ns(one.time_ns),
            DASH if one.energy_j is None else format_joules(one.energy_j),
        )
        for one in modules
    ]
    return table_lines(columns, rows)
