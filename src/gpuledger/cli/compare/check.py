"""``gpuledger check``: whether a run keeps within a budget; exit 5 where it does not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.cli.common import (
    force_option,
    json_option,
    open_run,
    print_json,
    print_lines,
    print_notes,
    quoted,
    run_argument,
)
from gpuledger.cli.inspect.report import choose_file, write_text
from gpuledger.errors import BudgetExceededError
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuledger.analyze.compare.budget import Gate
    from gpuledger.model.run import Run


@click.command(
    "check",
    epilog="""\b
Examples:
  gpuledger check train.ledger --budget budget.toml --junit memory.xml
  gpuledger check b.ledger --against a.ledger --allow peak_allocated_bytes=+2%""",
)
@run_argument()
@click.option("--budget", "budget", metavar="FILE", help="Limits file in TOML; `gpuledger budget` writes one.")
@click.option("--against", "against", metavar="BASE", help="Run to compare with.")
@click.option(
    "--allow",
    "allow",
    multiple=True,
    metavar="NAME=+N%,…",
    help="Values to check with --against, each with its tolerance.  [default: peak_allocated_bytes=+0%]",
)
@click.option("--no-growth", is_flag=True, help="Fail if memory grows step after step until the last one.")
@json_option()
@click.option("--junit", "junit", metavar="FILE", help="Also write a JUnit XML file.")
@click.option(
    "--markdown", "markdown", metavar="FILE", help="Also write a Markdown file; - prints Markdown instead of text."
)
@force_option()
def check_command(
    run_path: str,
    budget: str | None,
    against: str | None,
    allow: tuple[str, ...],
    no_growth: bool,
    as_json: bool,
    force: bool,
    **files: str | None,
) -> None:
    """Check a run against limits or against another run.

    With several ranks or devices, the highest value counts. Exact values, such as allocated memory, need no tolerance.
    Sampled values, such as the step time, need one.

    With --no-growth, memory at the end of every step is checked, too, and needs no limit. Growth that stops before the
    last step is allowed, and so is a container with a limit, such as deque(maxlen=…), that is not full yet.

    Exits with status 5 if a value is above its limit or was not measured, or if memory grows. The same holds for a
    program with too few steps for --no-growth.
    """
    if no_growth and not (budget or against or allow):
        _refuse_growth(open_run(run_path), run_path, as_json=as_json)
        return
    base = None if against is None else open_run(against)
    from gpuledger.services.queries import read_limits

    limits = read_limits(budget, base, ",".join(allow) if allow else None)
    places = [
        None if name in (None, "-") else choose_file(name, "check", force=force)
        for name in (files["junit"], files["markdown"])
    ]
    from gpuledger.analyze.compare.budget import check, check_notes

    run = open_run(run_path)
    gates, notes = check(run, limits), check_notes(run, base)
    _write_files(run.name, gates, places[0], places[1])
    _print(run.name, gates, notes, as_json=as_json, as_markdown=files["markdown"] == "-")
    over = [gate for gate in gates if not gate.ok]
    if over:
        limits_text = "limit" if len(gates) == 1 else "limits"
        message = f"{run.path.name}: {len(over)} of {len(gates)} {limits_text} not met"
        raise BudgetExceededError(message, hint=f"gpuledger {_closer_look(run, run_path, against)}")
    if no_growth:
        _refuse_growth(run, run_path)


def _refuse_growth(run: Run, path: str, *, as_json: bool | None = None) -> None:
    """Check that no memory grows; with ``as_json`` not None, also print the outcome.

    Raises:
        BudgetExceededError: it does, or too few steps were counted to tell.
    """
    from gpuledger.analyze.memory.growth import CountedSteps, counted_steps
    from gpuledger.analyze.memory.trends import FEWEST_STEPS
    from gpuledger.analyze.view.view import build_view
    from gpuledger.model.schema.tables import SCHEMA_VERSION
    from gpuledger.report.json.document import growth_document
    from gpuledger.report.text.growth_text import growth_text

    found = build_view(run).growth
    growth = [one for one in found if not one.will_end]
    none = CountedSteps(0, FEWEST_STEPS)
    steps = max(map(counted_steps, run.ranks), key=lambda one: one.counted, default=none)
    if as_json:
        facts = {"counted_steps": steps.counted, "needed_steps": steps.needed}
        ok = steps.are_enough and not growth
        head = {"schema_version": SCHEMA_VERSION, "run": run.name, "ok": ok}
        print_json({**head, **facts, "growth": [growth_document(one) for one in found]})
    if growth:
        raise BudgetExceededError(
            f"{run.path.name}: memory grows: {growth_text(growth[0])}", hint=f"gpuledger show {quoted(path)}"
        )
    if not steps.are_enough and steps.misses_calls:
        raise BudgetExceededError(
            f"{run.path.name}: cannot show whether memory grows: calls of a model are counted until the measurements "
            f"end, here {steps.counted}, and {steps.needed} steps are needed",
            hint="Call gpuledger.step() in your program at the end of each step, and record it again",
        )
    if not steps.are_enough:
        raise BudgetExceededError(
            f"{run.path.name}: too short to show whether memory grows: it was measured at the end of "
            f"{steps.counted} steps, and {steps.needed} are needed"
            + (" because live tensors could not be counted at the end of a step" if steps.without_census else ""),
            hint="Record a longer run" + ("" if steps.counted else " with --flight-recorder"),
        )
    if as_json is False:
        texts = [f"memory grows, but not without limit: {growth_text(one)}" for one in found]
        seen = f" in the first {steps.counted:,} calls of the model, the only ones that were counted"
        steady = _no_growth_text(run) + (seen if steps.misses_calls else "")
        print_lines([f"{run.path.name}: {text}" for text in texts or [steady]])


def _no_growth_text(run: Run) -> str:
    """Return that memory does not grow, or how much host memory rises without a known reason."""
    from gpuledger.analyze.memory.kept_growth import find_host_rise

    rise = next((found for rank in run.ranks if (found := find_host_rise(rank)) is not None), None)
    if rise is None:
        return "memory does not grow"
    return (
        "no tensors or containers become more, but host memory rises by "
        f"{format_bytes(round(rise.per_step))} per step, {format_bytes(round(rise.total))} since step "
        f"{rise.since_step}: C code may keep it, or memory that was allocated before is used for the first time"
    )


def _closer_look(run: Run, path: str, against: str | None) -> str:
    """Return the words of a command that says more."""
    from gpuledger.analyze.memory.lifetimes import device_indices

    if not any(device_indices(rank) for rank in run.ranks):
        return " ".join(["compare", *(quoted(one) for one in (against, path) if one)])
    return f"diff {quoted(against)} {quoted(path)} --by module" if against else f"show {quoted(path)} --by module"


def _write_files(run: str, gates: Sequence[Gate], junit: Path | None, markdown: Path | None) -> None:
    from gpuledger.report.text.check_text import check_markdown
    from gpuledger.report.text.junit import junit_xml

    if junit is not None:
        write_text(junit, junit_xml(run, gates))
    if markdown is not None:
        write_text(markdown, check_markdown(run, gates))


def _print(run: str, gates: Sequence[Gate], notes: tuple[str, ...], *, as_json: bool, as_markdown: bool) -> None:
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.json.check_document import check_document
    from gpuledger.report.text.check_text import check_lines, check_markdown
    from gpuledger.report.text.run_summary import note_lines

    if as_json:
        print_json(check_document(run, gates, notes))
    elif as_markdown:
        click.echo(check_markdown(run, gates), nl=False)
    else:
        print_lines(check_lines(gates, Terminal.of(sys.stdout)))
    stderr = Terminal.of(sys.stderr)
    print_notes(note_lines(notes, stderr))
