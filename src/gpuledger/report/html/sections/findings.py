"""Ways to lower the peak."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from gpuledger.model.run_directory import SUFFIX
from gpuledger.report.html.sections.section import Page, Section, script

if TYPE_CHECKING:
    from gpuledger.analyze.overview.finding import Finding
    from gpuledger.analyze.view.device_view import DeviceView


def _data(device: DeviceView, page: Page) -> dict[str, Any]:
    return {"findings": [_finding(finding, page.view.run.name, device) for finding in device.findings]}


def _finding(finding: Finding, name: str, device: DeviceView) -> dict[str, Any]:
    run = shlex.quote(f"{name}{SUFFIX}")
    words = ["gpuledger", *(run if word == "RUN" else word for word in finding.command)]
    return {
        "title": finding.title,
        "evidence": finding.evidence,
        "advice": finding.advice,
        "saving": finding.saving_bytes,
        "saved_from": finding.saved_from,
        "peak": finding.peak_after_bytes,
        "at_least": finding.is_upper_bound,
        "fits": device.fits(finding.peak_after_bytes),
        "fit": device.options.fit_bytes,
        "command": " ".join(words),
        "search": finding.search,
    }


SECTION = Section(
    name="findings",
    heading="Ways to lower the peak",
    scripts=(script("findings.js"),),
    data=_data,
    body="""<ol id="findings" class="findings"></ol>
<p class="hint">Savings are computed by replaying this recording without this memory. You cannot add \
them up.</p>""",
    is_hidden=True,
)
