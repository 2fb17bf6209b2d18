"""``gpuledger estimate``: estimate GPU memory of a training script without running it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from gpuledger.cli.common import (
    ProgramCommand,
    fit_option,
    force_option,
    gpu_option,
    json_option,
    out_option,
    print_json,
    print_lines,
    print_notes,
    quoted,
    script_of,
)
from gpuledger.cli.predict.estimate_ranks import estimate_all_ranks, find_world_size, has_ranks, rank_options
from gpuledger.cli.scripts import refuse_other_programs, with_installed_script
from gpuledger.errors import BudgetExceededError, UsageError, in_option
from gpuledger.units import parse_memory

if TYPE_CHECKING:
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.simulate.catalogue import GpuModel
    from gpuledger.simulate.estimate.run import Estimate, Order
    from gpuledger.simulate.estimate.search import Search

_ACCOUNTS_SHOWN = 10


class _Steps(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A number of steps, or ``auto`` (None)."""

    name = "steps"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the number; None for ``auto``.

        Raises:
            UsageError: it is neither.
        """
        if value == "auto" or value is None:
            return None
        if not str(value).isdecimal() or int(value) < 1:
            raise UsageError(f"--steps {value}: expected a whole number of 1 or more, or auto", hint="For example 3")
        return int(value)


@click.command(
    "estimate",
    cls=ProgramCommand,
    epilog="""\b
Examples:
  gpuledger estimate --gpu a100-80gb train.py --batch-size 32
  gpuledger estimate --gpu l4 --find-batch batch-size train.py --batch-size 8""",
)
@gpu_option("GPU model, as listed by `gpuledger gpus`, or all for one table of all of them.", default="h200")
@click.option("--gpu-memory", metavar="MEMORY", help="Memory of a GPU that is not listed, such as 24GiB. Needs --sm.")
@click.option("--sm", metavar="X.Y", help="Compute capability of that GPU, such as 8.9.")
@click.option(
    "--steps",
    type=_Steps(),
    default="auto",
    show_default=True,
    metavar="N",
    help="Number of training steps to simulate. With auto, 3 steps if the inputs have the same shapes in each step, "
    "otherwise until the largest of the next batches was simulated.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 0.999),
    default=0.95,
    show_default=True,
    metavar="P",
    help="Confidence level of the upper bound.",
)
@click.option(
    "--alloc-conf", default="", metavar="CONF", help="Allocator settings, in the form of PYTORCH_CUDA_ALLOC_CONF."
)
@click.option("--require-fit", is_flag=True, help="Exit with status 5 if the program does not fit.")
@click.option("--find-batch", metavar="NAME", help="Find the largest value of the program's argument --NAME that fits.")
@fit_option()
@click.option(
    "--batch-argument",
    metavar="NAME",
    help="With --fit, the program's argument --NAME with the batch size.  [default: the first with batch in its name]",
)
@rank_options
@out_option(".  [default: name of the program and the GPU, numbered]")
@force_option()
@click.option("-q", "--quiet", is_flag=True, help="Discard the program's output.")
@json_option()
@click.pass_context
def estimate_command(ctx: click.Context, /, **flags: Any) -> None:
    """Estimate GPU memory of a training script without running it.

    The first steps of your unchanged script are simulated with tensors that have a shape but no data. Nothing is
    computed, and checkpoints are not written. The estimate covers tensors, the caching allocator, workspaces, the CUDA
    context and libraries. It is written as a run that other commands can open. Output of the script goes to stderr.

    Exits with status 5 if --require-fit is given and the program does not fit.
    """
    program = with_installed_script(script_of(ctx))
    if not program or program == ("-m",):
        raise UsageError("estimate: no program given", hint="gpuledger estimate train.py")
    refuse_other_programs(program, "gpuledger estimate")
    from gpuledger.analyze.allocator.alloc_conf import parse_alloc_conf
    from gpuledger.model.run_directory import choose_directory
    from gpuledger.simulate.estimate.run import Order, estimate_program

    order = Order(program, _card(flags), flags["steps"], flags["confidence"], parse_alloc_conf(flags["alloc_conf"]))
    output = None if flags["quiet"] else sys.stderr
    with_ranks = has_ranks(flags)
    every = _is_every(flags)
    if _is_advice(flags):
        from gpuledger.cli.predict.advice import advise_on

        advise_on(order, flags)
        return
    if flags["find_world_size"] is not None:
        find_world_size(order, flags)
        return
    if flags["find_batch"]:
        _find_batch(order, flags["find_batch"], output, as_json=flags["as_json"])
        return
    stem = Path(program[1] if program[0] == "-m" else program[0]).stem
    directory = choose_directory(flags["out"], force=flags["force"], stem=f"{stem}-on-{order.card.key}")
    if with_ranks:
        estimate_all_ranks(order, flags, directory)
        return
    found = estimate_program(order, directory, output, replace=flags["force"])
    _print_estimate(found, every=every, as_json=flags["as_json"])
    if flags["require_fit"] and not found.fits:
        raise BudgetExceededError(f"{found.fit.verdict} on {order.card.key}", hint="gpuledger estimate --find-batch …")


EVERY_GPU = "all"
"""Value of ``--gpu`` for all GPUs of the catalogue."""


def _is_every(flags: dict[str, Any]) -> bool:
    """Return whether the result is for all GPUs.

    Raises:
        UsageError: another option needs one GPU.
    """
    if flags["gpu"].strip().lower() != EVERY_GPU or flags["gpu_memory"] is not None:
        return False
    for name in ("find_batch", "require_fit"):
        if flags[name]:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} and --gpu all cannot be combined", hint=f"Name one GPU with {option}")
    return True


def _is_advice(flags: dict[str, Any]) -> bool:
    """Return whether changes of the program are wanted.

    Raises:
        UsageError: another option asks for another result, or an option of advice is given without ``--fit``.
    """
    if flags["fit_bytes"] is None:
        if flags["batch_argument"] is not None:
            raise UsageError("--batch-argument needs --fit", hint="For example --fit 24GiB")
        return False
    other = "--gpu all" if _is_every(flags) else "--find-batch" if flags["find_batch"] else ""
    if other:
        raise UsageError(f"--fit and {other} cannot be combined", hint="Use one of them")
    if flags["out"] is not None:
        raise UsageError("--fit writes no run", hint="Leave out --out")
    return True


def _card(flags: dict[str, Any]) -> GpuModel:
    """Return the GPU that the options name; for all GPUs, the one on which the rules were measured.

    Raises:
        UsageError: it is not listed, or only one of the two options of another GPU is given or valid.
    """
    from gpuledger.simulate.catalogue import REFERENCE, find_card, make_card

    memory, capability = flags["gpu_memory"], flags["sm"]
    if memory is None and capability is None:
        return find_card(REFERENCE if _is_every(flags) else flags["gpu"])
    if memory is None or capability is None:
        raise UsageError("--gpu-memory and --sm belong together", hint="For example --gpu-memory 24GiB --sm 8.9")
    found = re.fullmatch(r"(\d{1,2})\.(\d)", capability)
    if found is None:
        raise UsageError(f"--sm {capability}: expected a compute capability", hint="For example 8.9")
    with in_option("--gpu-memory"):
        memory_bytes = parse_memory(memory)
    return make_card(memory_bytes, (int(found[1]), int(found[2])))


def _print_estimate(found: Estimate, *, every: bool, as_json: bool) -> None:
    from gpuledger.cli.predict import documents
    from gpuledger.cli.predict import estimate_text as text
    from gpuledger.report.base.terminal import Terminal

    if as_json:
        print_json(documents.every_gpu_document(found) if every else documents.estimate_document(found))
        return
    terminal = Terminal.of(sys.stdout)
    if every:
        print_lines(text.every_gpu_lines(found, terminal))
    else:
        print_lines(text.estimate_lines(found, terminal, _ACCOUNTS_SHOWN))
    print_notes(_closing(found, Terminal.of(sys.stderr)))


def _closing(found: Estimate, terminal: Terminal) -> list[str]:
    from gpuledger.report.text.run_summary import next_lines, note_lines

    path = quoted(found.run.path)
    commands = [f"gpuledger show {path} --by module", f"gpuledger balance {path}"]
    return ["", *note_lines(found.notes, terminal), *next_lines(commands, terminal)]


def _find_batch(order: Order, name: str, output: TextIO | None, *, as_json: bool) -> None:
    from gpuledger.cli.predict.documents import search_document
    from gpuledger.cli.predict.estimate_text import search_lines
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.simulate.estimate.batch import search_argument

    found: Search = search_argument(order, name, output)
    if as_json:
        print_json(search_document(found, order.card, name))
    else:
        print_lines(search_lines(found, order.card, name, Terminal.of(sys.stdout)))
