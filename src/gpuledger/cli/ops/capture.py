"""``gpuledger ops capture``: write the operators of a model or program to workload files."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import (
    ProgramCommand,
    force_option,
    gpu_option,
    json_option,
    output_option,
    print_json,
    print_notes,
    quoted,
    script_of,
)
from gpuledger.cli.ops.common import (
    config_option,
    input_option,
    print_next,
    print_safe,
    train_option,
    trust_files_option,
)
from gpuledger.cli.scripts import with_installed_script
from gpuledger.errors import GpuLedgerError, UsageError

if TYPE_CHECKING:
    from gpuledger.ops.workloads.workload import Workload
    from gpuledger.ops.workloads.workload_spec import WorkloadSpec


class CaptureCommand(ProgramCommand):
    """Takes a program, a model or a file of models."""

    program_usage = "[SCRIPT [ARGS]… | -m MODULE [ARGS]…]"


@click.command(
    "capture",
    cls=CaptureCommand,
    epilog="""\b
Examples:
  gpuledger ops capture --model torchvision:resnet50 --batch 32 --train
  gpuledger ops capture --gpu h200 train.py --epochs 1""",
)
@click.option(
    "--model", metavar="NAME", help="Model: torchvision:NAME, timm:NAME, transformers:NAME or package.module:factory."
)
@click.option("--batch", type=click.IntRange(min=1), default=32, show_default=True, metavar="N", help="Batch size.")
@input_option()
@train_option()
@click.option(
    "--weights",
    metavar="NAME",
    help="Name of the weights in the model's library, or random.  [default: random]",
)
@click.option(
    "--optimizer", default="sgd", show_default=True, metavar="NAME", help="Optimizer of a training step: sgd or adamw."
)
@click.option("--autocast", metavar="DTYPE", help="Autocast data type: float16 or bfloat16.  [default: none]")
@config_option()
@trust_files_option()
@gpu_option("GPU model, as listed by `gpuledger gpus`, or cpu.  [default: the GPU of this machine, or h200]")
@click.option(
    "--step",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="Number of the training step to capture.",
)
@output_option("File or folder to write to.  [default: named after the model]", "FILE|DIR")
@force_option()
@click.option("-q", "--quiet", is_flag=True, help="Discard the program's output.")
@json_option()
@click.pass_context
def capture_command(ctx: click.Context, /, **flags: Any) -> None:
    """Write the operators of a model or program to a workload file.

    The file lists every operator of one step with its shapes, how often it is called, and in which modules. It
    includes backward and optimizer. Without a GPU the step is simulated: tensors have a shape but no data, and nothing
    is computed. A program is stopped after the step.

    Exits with status 3 if a model could not be captured, or if the program uses torch.compile. Set
    TORCHDYNAMO_DISABLE=1 to capture it uncompiled.
    """
    program = with_installed_script(script_of(ctx))
    if sum(bool(one) for one in (program, flags["model"], flags["config"])) != 1 or program == ("-m",):
        raise UsageError("capture: needs one of SCRIPT, --model and --config", hint="gpuledger ops capture train.py")
    from gpuledger.services.workloads import write_workloads

    captured = []
    output = None if flags["output"] is None else Path(flags["output"])
    single = not flags["config"] and len(flags["inputs"]) < 2
    for path, workload in write_workloads(_captured(program, flags), output, single=single, replace=flags["force"]):
        captured.append((path, workload))
        if not flags["as_json"]:
            _print(workload)
    if flags["as_json"]:
        print_json([{"path": str(path), **_document(workload)} for path, workload in captured])
    elif captured:
        print_next(f"gpuledger ops list {quoted(captured[-1][0])} --by layer")


def _captured(program: tuple[str, ...], flags: dict[str, Any]) -> Iterator[Workload]:
    """Yield the workloads as they are captured."""
    if program:
        from gpuledger.ops.workloads.programs import capture_program

        output = None if flags["quiet"] else sys.stderr
        yield capture_program(program, flags["gpu"], steps=flags["step"], output=output)
        return
    from gpuledger.services.workloads import capture_models

    gpu, wanted = _asked(flags)
    yield from capture_models(wanted, gpu, left_out=say_left_out)


def _asked(flags: dict[str, Any]) -> tuple[str | None, Sequence[WorkloadSpec]]:
    """Return the GPU and the models that the line asks for."""
    if flags["config"]:
        from gpuledger.ops.measure.campaign_file import read_campaign

        campaign = read_campaign(Path(flags["config"]), trusted=flags["trust_files"])
        weights = {} if flags["weights"] is None else {"weights": flags["weights"]}
        return flags["gpu"] or campaign.gpu, [replace(one, **weights) for one in campaign.wanted]
    from gpuledger.ops.workloads.workload_spec import WorkloadSpec

    names = ("model", "batch", "weights", "optimizer", "autocast")
    shared = {name: flags[name] for name in names if flags[name] is not None} | {
        "mode": "training" if flags["train"] else "inference"
    }
    return flags["gpu"], [WorkloadSpec(**shared, inputs=size) for size in flags["inputs"] or (None,)]


def say_left_out(wanted: WorkloadSpec, error: GpuLedgerError) -> None:
    """Say that a model is left out, and why."""
    hint = [f"  hint: {error.hint}"] if error.hint else []
    print_notes([f"gpuledger: not captured: {wanted.model}: {error.message}", *hint])


def _print(workload: Workload) -> None:
    """Print what was captured; its notes go to stderr."""
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.run_summary import note_lines
    from gpuledger.units import counted

    settings = workload.settings
    operators, layers = len(workload.uses), len(workload.layers)
    counts = (
        f"{counted(operators, 'distinct operator')} in {counted(workload.calls, 'call')}, "
        f"{counted(layers, 'distinct layer')}"
    )
    print_safe([f"{workload.name}: {counts}; {settings['device']}"])
    print_notes(note_lines(settings["notes"], Terminal.of(sys.stderr)))


def _document(workload: Workload) -> dict[str, Any]:
    return {
        "name": workload.name,
        "mode": workload.mode,
        "distinct_operators": len(workload.uses),
        "calls": workload.calls,
        "distinct_layers": len(workload.layers),
        "settings": dict(workload.settings),
    }
