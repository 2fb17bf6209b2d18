"""Results of a check as JUnit XML, which CI systems show with the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuledger.analyze.compare.budget import unit_of
from gpuledger.report.base.markup import element, html_text
from gpuledger.report.base.quantities import exactly
from gpuledger.report.text.check_text import gate_title, verdict_of, where_of

if TYPE_CHECKING:
    from gpuledger.analyze.compare.budget import Gate


def junit_xml(run: str, gates: Sequence[Gate]) -> str:
    """Return one test case per limit. An exceeded limit is a failure, a missing value an error."""
    errors = sum(gate.found is None for gate in gates)
    failures = sum(not gate.ok for gate in gates) - errors
    counts = {"tests": str(len(gates)), "failures": str(failures), "errors": str(errors)}
    suite = element("testsuite", *(_case(run, gate) for gate in gates), name=f"gpuledger check {run}", **counts)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{element("testsuites", suite, **counts)}\n'


def _case(run: str, gate: Gate) -> str:
    names = {"classname": f"gpuledger.{run}", "name": gate.limit.key}
    if gate.ok:
        return element("testcase", **names)
    message = f"{gate_title(gate)}: {verdict_of(gate)}"
    kind = "error" if gate.found is None else "failure"
    return element("testcase", element(kind, html_text(_details(gate)), message=message, type=kind), **names)


def _details(gate: Gate) -> str:
    unit = unit_of(gate.limit.key)
    found = "not measured" if gate.found is None else f"{exactly(gate.found.value, unit)}, {gate.found.source}"
    return f"found {found}; limit {exactly(gate.limit.value, unit)} ({gate.limit.written}); {where_of(gate)}"
