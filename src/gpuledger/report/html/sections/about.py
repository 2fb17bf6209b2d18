"""About this recording: the command, the versions, the recorder's checks, and the definition of each number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuledger.report.html.provenance import check_rows, facts_of_rank
from gpuledger.report.html.sections.section import Page, Section, column, script, table

if TYPE_CHECKING:
    from gpuledger.analyze.view.device_view import DeviceView
    from gpuledger.analyze.view.watched_card import WatchedCard


def _data(device: DeviceView, page: Page) -> dict[str, Any]:
    manifest, device_idx = device.rank.manifest, device.device_idx
    return {"facts": facts_of_rank(manifest, device_idx, device.overhead), "checks": check_rows(manifest, device_idx)}


def _card_data(card: WatchedCard, page: Page) -> dict[str, Any]:
    return {"facts": facts_of_rank(card.rank.manifest, card.line.device_idx), "checks": []}


_CHECKS = table("checks", [column("Check"), column("Expected", "bytes"), column("Found", "bytes"), column("")])
SECTION = Section(
    name="about",
    heading="About this recording",
    scripts=(script("about.js"),),
    data=_data,
    card_data=_card_data,
    body=f"""<dl id="facts" class="facts pairs"></dl>
<div id="checks-section" hidden>
<details id="checks-details"><summary id="checks-summary"></summary>
{_CHECKS}
</details>
</div>
<details id="meanings"><summary>Definitions</summary><dl id="definitions" class="facts"></dl></details>""",
)
