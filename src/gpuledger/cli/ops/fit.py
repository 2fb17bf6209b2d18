"""``gpuledger ops fit``: learn from the book what operators cost."""

from __future__ import annotations

from pathlib import Path

import click

from gpuledger.cli.common import force_option, gpu_option, json_option, output_option, print_json, print_lines
from gpuledger.cli.inspect.report import choose_file
from gpuledger.cli.ops.common import book_option, say_note


@click.command(
    "fit",
    short_help="Learn from the book what operators cost.",
    epilog="""\b
Examples:
  gpuledger ops fit
  gpuledger ops fit --gpu h200 -o h200.model""",
)
@book_option()
@gpu_option("A GPU that the book holds.  [default: the one measured last]")
@output_option("Keep the model here as well.")
@force_option()
@json_option()
def fit_command(book_url: str, gpu: str | None, output: str | None, force: bool, as_json: bool) -> None:
    """Learn what operators cost, as shares of what the card can do at most.

    The model is kept until the book changes, as arrays of numbers: reading one runs no code. `ops predict` does this
    by itself where it has not been done.
    """
    if output is not None:
        choose_file(output, "operators.model", force=force)
    from gpuledger.ops.database.book import open_existing
    from gpuledger.ops.predict.choose import cache_folder, model_of, open_environment_records
    from gpuledger.ops.predict.predict import save_model

    shelf = open_environment_records(open_existing(book_url), gpu)
    model = model_of(shelf, cache_folder(), say_note)
    if output is not None:
        save_model(model, Path(output))
    document = {
        "card": model.roof.card,
        "examples": model.examples,
        "operators": len(model.ranges),
        "energy": model.power is not None,
        "roof": model.roof.source,
    }
    if as_json:
        print_json(document)
        return
    what = "time and energy" if model.power is not None else "time"
    print_lines([f"{model.roof.card}: {what} of {model.examples:,} measured operators of {len(model.ranges)} types"])
