"""``gpuledger ops sweep``: generate operator configurations to measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpuledger.cli.common import force_option, output_option, print_lines, quoted
from gpuledger.cli.ops.common import print_next, seed_option, train_option
from gpuledger.units import counted


class Numbers(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """Values with commas between them."""

    name = "list"

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Return the values."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self.kind(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of values such as 1,2,4", param, ctx)


WHOLE, SHARES, TEXTS = Numbers(int), Numbers(float), Numbers(str)


@click.command(
    "sweep",
    epilog="""\b
Examples:
  gpuledger ops sweep conv2d --sizes 14,28,56 --kernel 1,3,5,7 --sample 200
  gpuledger ops sweep depthwise --channels 96,192 --train --warm-cache""",
)
@click.argument("operator")
@click.option("--batch", type=WHOLE, default="32", show_default=True, metavar="LIST", help="Batch sizes.")
@click.option(
    "--sizes",
    type=WHOLE,
    default="56",
    show_default=True,
    metavar="LIST",
    help="Width and height of images in pixels, or rows of matrices.",
)
@click.option(
    "--channels",
    type=WHOLE,
    default="64",
    show_default=True,
    metavar="LIST",
    help="Numbers of input and output channels.",
)
@click.option(
    "--kernel", type=WHOLE, default="3", show_default=True, metavar="LIST", help="Kernel sizes of convolutions."
)
@click.option("--stride", type=WHOLE, default="1", show_default=True, metavar="LIST", help="Strides of convolutions.")
@click.option("--groups", type=WHOLE, default="1", show_default=True, metavar="LIST", help="Groups of convolutions.")
@click.option(
    "--dtype",
    type=TEXTS,
    default="float32",
    show_default=True,
    metavar="LIST",
    help="Data types, such as float32,float16.",
)
@click.option(
    "--sparsity",
    type=SHARES,
    default="0",
    show_default=True,
    metavar="LIST",
    help="Shares of zeros in the input, 0 to 1.",
)
@click.option(
    "--weight-sparsity",
    type=SHARES,
    default="0",
    show_default=True,
    metavar="LIST",
    help="Shares of zeros in the weights, 0 to 1.",
)
@click.option(
    "--bias",
    type=WHOLE,
    default="0",
    show_default=True,
    metavar="LIST",
    help="Convolutions without (0) or with (1) bias.",
)
@click.option(
    "--pieces", type=WHOLE, default="2", show_default=True, metavar="LIST", help="Numbers of tensors that cat joins."
)
@train_option()
@click.option("--warm-cache", is_flag=True, help="Measure with inputs in the GPU's cache, as in a small model.")
@click.option(
    "--sample", type=click.IntRange(min=1), metavar="N", help="Choose N combinations at random.  [default: all]"
)
@seed_option()
@output_option("File to write.  [default: sweep-OPERATOR.workload.json]")
@force_option()
def sweep_command(
    operator: str,
    train: bool,
    warm_cache: bool,
    sample: int | None,
    seed: int,
    output: str | None,
    force: bool,
    **lists: tuple[Any, ...],
) -> None:
    """Generate operator configurations to measure.

    OPERATOR is conv2d, depthwise, linear, bmm, relu, add, cat, softmax or layer_norm. Each option takes a list of
    values, and every valid combination becomes one configuration. Measure the file with `gpuledger ops measure`.
    """
    from gpuledger.ops.predict.sweep import Grid, sweep
    from gpuledger.services.workloads import refuse_taken

    reuse_bytes = 0.0 if warm_cache else None
    workload = sweep(operator, Grid(**lists), sample, seed, train=train, reuse_bytes=reuse_bytes)
    path = Path(output or workload.file_name)
    refuse_taken(path, replace=force)
    workload.write(path)
    print_lines([f"{path}: {counted(len(workload.uses), 'operator')}, of {operator}"])
    print_next(f"gpuledger ops measure {quoted(path)}")
