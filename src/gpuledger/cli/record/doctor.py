"""``gpuledger doctor``: what works on this machine, and what to do about what does not."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from gpuledger._version import __version__
from gpuledger.cli.common import json_option, print_json, print_lines, print_notes

if TYPE_CHECKING:
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.services.machine_checks import MachineCheck


@click.command(
    "doctor",
    epilog="""\b
Examples:
  gpuledger doctor
  gpuledger doctor --json""",
)
@json_option()
def doctor_command(as_json: bool) -> int:
    """Check what can be recorded on this machine.

    Each line is one check; if something is wrong, the next line says what to do. The last checks record a small
    computation on each device and verify every byte.

    Exits with status 1 if a problem prevents recording.
    """
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.services.machine_checks import examine, is_healthy, verdict

    terminal = Terminal.of(sys.stdout)
    checks = []
    for check in examine():
        checks.append(check)
        if not as_json:
            print_lines(check_lines(check, terminal))
            sys.stdout.flush()
    healthy = is_healthy(checks)
    if as_json:
        rows = [asdict(check) for check in checks]
        print_json({"schema_version": 1, "gpuledger_version": __version__, "ok": healthy, "checks": rows})
    else:
        print_notes(["", *terminal.paragraph(verdict(checks))])
    return 0 if healthy else 1


def check_lines(check: MachineCheck, terminal: Terminal) -> list[str]:
    """Return one finding as text, and below it what to do."""
    from gpuledger.report.base.terminal import BOLD, DIM, PLAIN
    from gpuledger.services.machine_checks import FAIL, OK

    style = {OK: DIM, FAIL: BOLD}.get(check.status, PLAIN)
    label = f"{check.status:<4}  {check.name:<11} "
    lines = terminal.paragraph(check.found, label, len(label))
    lines[0] = terminal.styled(check.status, style) + lines[0][len(check.status) :]
    return lines + (terminal.paragraph(check.todo, "      to do: ", 13) if check.todo else [])
