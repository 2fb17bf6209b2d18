"""``gpuledger ops``: which commands there are."""

from __future__ import annotations

import click

from gpuledger.cli.main import Commands, Entry

COMMANDS: dict[str, Entry] = {
    "capture": Entry("ops.capture:capture_command", "Capture", "Write down what a model is made of."),
    "list": Entry("ops.list_:list_command", "Capture", "List the layers or operators of a workload."),
    "measure": Entry("ops.measure:measure_command", "Measure", "Measure what the database lacks of workloads."),
    "sum": Entry("ops.sum:sum_command", "Add up", "Add up a workload's time and energy from the database."),
    "compare": Entry("ops.compare:compare_command", "Add up", "Hold sums beside whole models."),
    "campaign": Entry("ops.campaign:campaign_command", "Measure", "Capture, measure and compare what one file lists."),
    "fit": Entry("ops.fit:fit_command", "Predict", "Learn from the database what operators cost."),
    "accuracy": Entry("ops.accuracy:accuracy_command", "Predict", "Tell how good predictions from the database are."),
    "predict": Entry("ops.predict:predict_command", "Predict", "Predict a model on a GPU, measured or not."),
    "sweep": Entry("ops.sweep:sweep_command", "Capture", "Write configurations that no model uses, to be measured."),
    "query": Entry("ops.query:query_command", "The database", "Ask the database with SQL, read-only."),
    "export": Entry("ops.export:export_command", "The database", "Write the database as Parquet, CSV or HTML."),
    "merge": Entry("ops.merge:merge_command", "The database", "Add what other databases hold."),
    "diff": Entry("ops.diff:diff_command", "The database", "Tell what two databases disagree about."),
    "import": Entry("ops.import_:import_command", "The database", "Take in operator lists and rows that others wrote."),
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
    """What every distinct operator costs, measured once, in a database that any model is summed from."""
