"""``gpuledger ops fit``: learn from the database what operators cost."""

from __future__ import annotations

from pathlib import Path

import click

from gpuledger.cli.common import force_option, gpu_option, json_option, output_option, print_json, print_lines
from gpuledger.cli.inspect.report import choose_file
from gpuledger.cli.ops.common import database_option, fit_bar


@click.command(
    "fit",
    epilog="""\b
Examples:
  gpuledger ops fit
  gpuledger ops fit --gpu h200 -o h200.model""",
)
@database_option()
@gpu_option("GPU model in the database.  [default: the GPU measured last]")
@output_option("Also write the model to this file.")
@force_option()
@json_option()
def fit_command(database_url: str, gpu: str | None, output: str | None, force: bool, as_json: bool) -> None:
    """Fit the model that predicts unmeasured operators.

    The model predicts time and energy of an operator from the measured ones and from the limits of the GPU. It is
    stored until the database changes. `gpuledger ops predict` runs this command if needed.
    """
    if output is not None:
        choose_file(output, "operators.model", force=force)
    from gpuledger.ops.database.readable import open_readable
    from gpuledger.ops.predict.choose import cache_folder, model_of, open_environment_records
    from gpuledger.ops.predict.predict import save_model

    shelf = open_environment_records(open_readable(database_url), gpu)
    model = model_of(shelf, cache_folder(), fit_bar)
    if output is not None:
        save_model(model, Path(output))
    document = {
        "gpu": shelf.environment.title,
        "examples": model.examples,
        "operators": len(model.ranges),
        "energy": model.power is not None,
        "roof": model.roof.source,
    }
    if as_json:
        print_json(document)
        return
    what = "time and energy" if model.power is not None else "time"
    print_lines(
        [f"{shelf.environment.title}: {what} of {model.examples:,} measured operators of {len(model.ranges)} types"]
    )
