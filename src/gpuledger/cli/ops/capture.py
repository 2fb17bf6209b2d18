"""``gpuledger ops capture``: what a model or a program is made of, as workload files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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
from gpuledger.cli.ops.common import config_option, print_safe, train_option, trust_files_option
from gpuledger.errors import GpuLedgerError, InputError, UsageError
from gpuledger.files.writing import is_taken, write_whole

if TYPE_CHECKING:
    from gpuledger.ops.measure.campaign_file import Campaign
    from gpuledger.ops.workloads.workload import Workload
    from gpuledger.ops.workloads.workload_spec import WorkloadSpec


class CaptureCommand(ProgramCommand):
    """Takes a program, a model or a file of models."""

    program_usage = "[SCRIPT [ARGS]… | -m MODULE [ARGS]…]"


@click.command(
    "capture",
    cls=CaptureCommand,
    short_help="Write down what a model is made of.",
    epilog="""\b
Examples:
  gpuledger ops capture --model torchvision:resnet50 --batch 32 --train
  gpuledger ops capture --gpu h200 train.py --epochs 1""",
)
@click.option("--model", metavar="NAME", help="torchvision:…, timm:…, transformers:… or package.module:factory.")
@click.option("--batch", type=click.IntRange(min=1), default=32, show_default=True, metavar="N", help="Samples.")
@click.option("--input", "inputs", multiple=True, metavar="SIZE", help="32x3x224x224, 8x128:int64; repeatable.")
@train_option()
@click.option("--weights", default="random", show_default=True, metavar="NAME", help="Weights the library knows.")
@click.option("--optimizer", default="sgd", show_default=True, metavar="NAME", help="sgd or adamw.")
@click.option("--autocast", metavar="DTYPE", help="float16 or bfloat16.")
@config_option()
@trust_files_option()
@gpu_option("cpu, or a GPU of `gpuledger gpus`.  [default: the one here, else h200]")
@click.option(
    "--step",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="Training step to capture.",
)
@output_option("Where to write.  [default: named after the model]", "FILE|DIR")
@force_option()
@click.option("-q", "--quiet", is_flag=True, help="Drop the program's own output.")
@json_option()
@click.pass_context
def capture_command(ctx: click.Context, /, **flags: Any) -> None:
    """Write down what a model or a program is made of.

    Every operator of a step at the dispatcher, functional ones, backward and optimizer included, with its count and
    the modules it runs in. Without a GPU a virtual one takes its place: tensors have a shape and no bytes, and
    nothing is computed. A program is ended after the step.
    """
    program = script_of(ctx)
    if sum(bool(one) for one in (program, flags["model"], flags["config"])) != 1 or program == ("-m",):
        raise UsageError("capture: give one of SCRIPT, --model and --config", hint="gpuledger ops capture train.py")
    single = not flags["config"] and len(flags["inputs"]) < 2
    named = None
    if flags["output"] and single and not Path(flags["output"]).is_dir():
        named = Path(flags["output"])
        _refuse_existing(named, force=flags["force"])  # before a program runs
    captured = []
    for workload in _captured(program, flags):
        path = _place(workload.name, flags["output"], single=single)
        _refuse_existing(path, force=flags["force"])
        if path == named:
            workload.write(path)
        else:
            write_whole(path, workload.encoded())
        captured.append((path, workload))
        if not flags["as_json"]:
            print_safe(_lines(workload))
    if flags["as_json"]:
        print_json([{"path": str(path), **_document(workload)} for path, workload in captured])
    elif captured:
        print_notes(["", f"next   gpuledger ops list {quoted(captured[-1][0])} --by layer"])


def _captured(program: tuple[str, ...], flags: dict[str, Any]) -> Iterator[Workload]:
    """Yield the workloads as they are captured."""
    if program:
        from gpuledger.ops.workloads.programs import capture_program

        output = None if flags["quiet"] else sys.stderr
        yield capture_program(program, flags["gpu"], steps=flags["step"], output=output)
        return
    from gpuledger.ops.workloads.captures import asked_for, capture_model, default_gpu

    campaign = _campaign(flags)
    gpu = flags["gpu"] or campaign.gpu or default_gpu()
    asked = [(wanted, asked_for(wanted)) for wanted in campaign.wanted]
    failures = []
    for wanted, one in asked:
        try:
            yield capture_model(one, gpu)
        except (UsageError, InputError) as error:
            if len(asked) == 1:
                raise
            failures.append(wanted)
            print_notes(not_captured_lines(wanted, error))
    if failures:
        raise InputError(f"{len(failures)} of {len(asked)} workloads were not captured")


def _campaign(flags: dict[str, Any]) -> Campaign:
    from gpuledger.ops.measure.campaign_file import Campaign, read_campaign
    from gpuledger.ops.workloads.workload_spec import WorkloadSpec

    if flags["config"]:
        return read_campaign(Path(flags["config"]), trusted=flags["trust_files"])
    names = ("model", "batch", "weights", "optimizer", "autocast")
    shared = {name: flags[name] for name in names} | {"mode": "training" if flags["train"] else "inference"}
    return Campaign(tuple(WorkloadSpec(**shared, inputs=size) for size in flags["inputs"] or (None,)))


def not_captured_lines(wanted: WorkloadSpec, error: GpuLedgerError) -> list[str]:
    """Return what is said of a model that is left out."""
    hint = [f"  hint: {error.hint}"] if error.hint else []
    return [f"gpuledger: not captured: {wanted.model}: {error.message}", *hint]


def _place(name: str, output: str | None, *, single: bool) -> Path:
    """Return where a workload is written: the file that was asked for, or one named after it."""
    from gpuledger.ops.workloads.workload import SUFFIX

    if output is None:
        return Path(name + SUFFIX)
    path = Path(output)
    if single and not path.is_dir():
        return path
    path.mkdir(parents=True, exist_ok=True)
    return path / (name + SUFFIX)


def _refuse_existing(path: Path, *, force: bool) -> None:
    if is_taken(path) and not force:
        raise UsageError(f"{path}: exists", hint="--force replaces it, -o gives another name")


def _lines(workload: Workload) -> list[str]:
    settings = workload.settings
    lines = [
        f"{workload.name}: {len(workload.uses):,} distinct operators in {workload.calls:,} calls, "
        f"{len(workload.layers):,} distinct layers; {settings['device']}"
    ]
    return [*lines, *(f"  note: {note}" for note in settings["notes"])]


def _document(workload: Workload) -> dict[str, Any]:
    return {
        "name": workload.name,
        "mode": workload.mode,
        "distinct_operators": len(workload.uses),
        "calls": workload.calls,
        "distinct_layers": len(workload.layers),
        "settings": dict(workload.settings),
    }
