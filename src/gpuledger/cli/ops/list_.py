"""``gpuledger ops list``: the distinct layers or operators of a workload."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import json_option, print_json, print_lines, rows_option
from gpuledger.cli.ops.common import print_remarks, workload_argument
from gpuledger.services.sums import open_workload
from gpuledger.units import DASH, counted

if TYPE_CHECKING:
    from gpuledger.ops.workloads.workload import Layer, Use, Workload
    from gpuledger.report.base.terminal import TextTable

ROWS = 40


@click.command(
    "list",
    epilog="""\b
Examples:
  gpuledger ops list resnet50-inference-32x3x224x224 --by layer
  gpuledger ops list train-training.workload.json --by operator --json""",
)
@workload_argument()
@click.option(
    "--by",
    type=click.Choice(["layer", "operator"]),
    default="operator",
    show_default=True,
    help="List distinct operators, or distinct layers with their operators.",
)
@rows_option(ROWS)
@json_option()
def list_command(workload_path: str, by: str, rows: int, as_json: bool) -> None:
    """List the layers or operators of a workload.

    Entries with the most calls come first. A layer is a module that calls no other module, with its class, arguments,
    shapes, parameters and operators.

    The column "reuse" is the memory that was accessed between producing the inputs of an operator and using them.
    """
    workload = open_workload(workload_path)
    if as_json:
        print_json(_document(workload, by))
        return
    from gpuledger.report.base.terminal import Terminal

    terminal = Terminal.of(sys.stdout)
    table, total = _by_layer(workload, rows) if by == "layer" else _by_operator(workload, rows)
    print_lines(table.lines(terminal))
    if total > rows:
        print_remarks([f"{counted(total - rows, 'more row')}: -n {total} or --json print them."])


def _by_operator(workload: Workload, rows: int) -> tuple[TextTable, int]:
    from gpuledger.report.base.terminal import TextColumn, TextTable
    from gpuledger.units import format_bytes

    uses = sorted(workload.uses, key=lambda use: -use.count)
    columns = (
        TextColumn("calls", right=True),
        TextColumn("operator", shrinks=True),
        TextColumn("reuse", right=True, optional=1),
        TextColumn("modules", shrinks=True),
    )
    cells = tuple(
        (
            f"{use.count:,}",
            use.key.text + _flags_text(use),
            DASH if use.reuse_bytes is None else format_bytes(int(use.reuse_bytes)),
            _modules_text(use.modules),
        )
        for use in uses[:rows]
    )
    return TextTable(columns, cells), len(uses)


def _flags_text(use: Use) -> str:
    """Return what differs from the usual settings."""
    flags = use.key.flags
    words = [f"autocast {flags['autocast']}"] if flags.get("autocast") else []
    words += ["tf32"] if flags.get("tf32") else []
    return f"  [{', '.join(words)}]" if words else ""


def _modules_text(modules: Sequence[tuple[str, int]]) -> str:
    first = modules[0][0] or "(outside modules)" if modules else ""
    return f"{first} and {len(modules) - 1} more" if len(modules) > 1 else first


def _by_layer(workload: Workload, rows: int) -> tuple[TextTable, int]:
    from gpuledger.report.base.terminal import TextColumn, TextTable

    operators = {use.key.digest: use.key.name for use in workload.uses}
    layers = sorted(workload.layers, key=lambda layer: -layer.count)
    columns = (
        TextColumn("calls", right=True),
        *(TextColumn(name, shrinks=True) for name in ("layer", "inputs", "outputs")),
    )
    cells = tuple(
        (
            f"{layer.count:,}",
            f"{layer.class_name}({layer.extra_repr})",
            _shapes(layer.inputs),
            _shapes(layer.outputs),
            f"{_parameters(layer):,}",
            _inside(layer, operators),
        )
        for layer in layers[:rows]
    )
    return TextTable(
        (*columns, TextColumn("parameters", right=True), TextColumn("operators", shrinks=True)), cells
    ), len(layers)


def _shapes(tensors: Sequence[Any]) -> str:
    from gpuledger.operator_key import value_text

    return ", ".join(map(value_text, tensors))


def _parameters(layer: Layer) -> int:
    from math import prod

    return sum(prod(shape) for _, shape in layer.parameters)


def _inside(layer: Layer, operators: dict[str, str]) -> str:
    words = [f"{count} × {operators[digest]}" if count > 1 else operators[digest] for digest, count in layer.uses]
    return ", ".join(words) or DASH


def _document(workload: Workload, by: str) -> list[dict[str, Any]]:
    from gpuledger.ops.workloads.workload import to_json

    found = to_json(workload)
    if by == "layer":
        return list(found["layers"])
    return [{"digest": use.key.digest, **one} for use, one in zip(workload.uses, found["uses"], strict=True)]
