"""``gpuledger ops``: which commands there are."""

from __future__ import annotations

import click

from gpuledger.cli.main import CommandEntry, Commands

CAPTURE, MEASURE, ESTIMATE, DATABASE = "Capture", "Measure", "Estimate", "Operator database"

COMMANDS: dict[str, CommandEntry] = {
    "capture": CommandEntry(
        "ops.capture:capture_command", CAPTURE, "Write the operators of a model or program to a workload file."
    ),
    "list": CommandEntry("ops.list_:list_command", CAPTURE, "List the layers or operators of a workload."),
    "sweep": CommandEntry("ops.sweep:sweep_command", CAPTURE, "Generate operator configurations to measure."),
    "measure": CommandEntry("ops.measure:measure_command", MEASURE, "Measure operators missing from the database."),
    "campaign": CommandEntry(
        "ops.campaign:campaign_command", MEASURE, "Capture, measure and compare the models in a file."
    ),
    "sum": CommandEntry("ops.sum:sum_command", ESTIMATE, "Sum the measured time and energy of a workload."),
    "predict": CommandEntry(
        "ops.predict:predict_command", ESTIMATE, "Predict time and energy of a model on a given GPU."
    ),
    "compare": CommandEntry("ops.compare:compare_command", ESTIMATE, "Compare sums of operators with whole models."),
    "fit": CommandEntry("ops.fit:fit_command", ESTIMATE, "Fit the model that predicts unmeasured operators."),
    "accuracy": CommandEntry("ops.accuracy:accuracy_command", ESTIMATE, "Show how accurate the predictions are."),
    "query": CommandEntry("ops.query:query_command", DATABASE, "Query the operator database with SQL."),
    "export": CommandEntry("ops.export:export_command", DATABASE, "Export the database as Parquet, CSV or HTML."),
    "merge": CommandEntry("ops.merge:merge_command", DATABASE, "Merge other databases into the operator database."),
    "diff": CommandEntry("ops.diff:diff_command", DATABASE, "Compare the measurements in two databases."),
    "import": CommandEntry("ops.import_:import_command", DATABASE, "Import operator lists and results of other tools."),
}
"""Commands in the order of ``--help``."""


class OpsCommands(Commands):
    """The group below ``gpuledger``."""

    entries = COMMANDS


@click.command(
    "ops",
    cls=OpsCommands,
    epilog="""\b
Examples:
  gpuledger ops capture --model torchvision:resnet50 --batch 32 --train
  gpuledger ops list resnet50-training-32x3x224x224.workload.json --by layer""",
)
def ops_group() -> None:
    """Estimate time and energy of a model from measured operators.

    Each distinct operator is measured once and stored in an operator database. Time and energy of any model with the
    same operators can then be summed from the database. Operators that were not measured are predicted.

    A WORKLOAD is a file that lists the operators of one step of a model; `gpuledger ops capture` writes it.
    """
