"""``gpuledger ops``: which commands there are."""

from __future__ import annotations

import click

from gpuledger.cli.main import Commands, Entry

COMMANDS: dict[str, Entry] = {
    "capture": Entry("gpuledger.cli.ops.capture:capture_command", "Capture", "Write down what a model is made of."),
    "list": Entry("gpuledger.cli.ops.list_:list_command", "Capture", "List the layers or operators of a workload."),
    "measure": Entry(
        "gpuledger.cli.ops.measure:measure_command", "Measure", "Measure what the book lacks of workloads."
    ),
    "sum": Entry("gpuledger.cli.ops.sum:sum_command", "Add up", "Add up a workload's time and energy from the book."),
}
"""Commands in the order of ``--help``."""


class OpsCommands(Commands):
    """The group below ``gpuledger``."""

    entries = COMMANDS


@click.command(
    "ops",
    cls=OpsCommands,
    short_help="Measure operators once, add them up for any model.",
    epilog="""\b
Examples:
  gpuledger ops capture --model torchvision:resnet50 --batch 32 --train
  gpuledger ops list resnet50-training-32x3x224x224.workload.json --by layer""",
)
def ops_group() -> None:
    """What every distinct operator costs, measured once, in a book that any model is summed from."""
