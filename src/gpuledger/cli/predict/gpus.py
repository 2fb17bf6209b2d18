"""``gpuledger gpus``: the catalogue an estimate can be made for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import json_option, print_json, print_lines

if TYPE_CHECKING:
    from gpuledger.simulate.catalogue import Figure, GpuModel


@click.command(
    "gpus",
    epilog="""\b
Examples:
  gpuledger gpus
  gpuledger gpus --json""",
)
@json_option()
def gpus_command(as_json: bool) -> None:
    """List the GPU models that estimates can be made for.

    The letter after each number is its source: m for measured, d for the data sheet. An equals sign means that the
    number is from another GPU, because there is none for this one.
    """
    from gpuledger.simulate.catalogue import NOT_MODELLED, catalogue

    cards = list(catalogue().values())
    if as_json:
        print_json([_document(card) for card in cards])
        return
    from gpuledger.report.base.terminal import Terminal, TextColumn, TextTable
    from gpuledger.units import format_bytes

    def marked(figure: Figure, text: str) -> str:
        return f"{text} {'=' if not figure.is_own else figure.source[0]}"

    titles = ("GPU", "memory", "bandwidth", "context", "libraries", "capability")
    columns = tuple(TextColumn(title, right=0 < number < 5) for number, title in enumerate(titles))
    rows = tuple(
        (
            card.key,
            marked(card.memory_mib, format_bytes(card.total_bytes)),
            marked(card.bandwidth_gb_s, f"{card.bandwidth_gb_s.value:,} GB/s"),
            marked(card.context_bytes, format_bytes(card.context_bytes.value)),
            marked(card.library_bytes, format_bytes(card.library_bytes.value)),
            "{}.{}".format(*card.compute_capability),
        )
        for card in cards
    )
    legend = ("m measured, d data sheet, = from another GPU", f"Not modelled: {', '.join(NOT_MODELLED)}")
    print_lines([*TextTable(columns, rows).lines(Terminal.of(sys.stdout)), "", *legend])


def _document(card: GpuModel) -> dict[str, Any]:
    figures = {
        name: {"value": figure.value, "source": figure.source, "where": figure.where, "when": figure.when}
        for name, figure in card.figures().items()
    }
    return {
        "gpu": card.key,
        "name": card.name,
        "compute_capability": "{}.{}".format(*card.compute_capability),
        "multiprocessors": card.multiprocessors,
        **figures,
    }
