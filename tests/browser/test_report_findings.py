"""The findings at the head of the report: they are the analysis's own, a click sets the views, the table answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from card_recordings import post_recording
from opened import Opened

from gpuledger.analyze.overview.finding import Finding
from gpuledger.analyze.overview.findings import find_findings
from gpuledger.model.run_directory import write_json
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuledger.model.run import Rank

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Rank:
    rank = post_recording("lstm", tmp_path_factory.mktemp("recorded"))
    write_json(rank.directory.parent / "manifest.json", {"schema_version": 1})
    return rank


@pytest.fixture(scope="module")
def findings(rank: Rank) -> tuple[Finding, ...]:
    return find_findings(rank)


@pytest.fixture
def opened(open_report: Callable[..., Opened], rank: Rank) -> Opened:
    return open_report(ledger=rank.directory.parent)


def test_they_are_those_of_the_run_with_their_commands(opened: Opened, findings: tuple[Finding, ...]) -> None:
    assert findings
    items = opened.page.locator("#findings li")
    assert items.count() == len(findings)
    for place, finding in enumerate(findings):
        text = items.nth(place).inner_text()
        assert finding.title in text
        word = "at most" if finding.is_upper_bound else "about"
        assert f"saves {word} {format_bytes(finding.saving_bytes)} of {finding.saved_from}" in text
        assert finding.saved_from in ("the peak", "reserved bytes") or not finding.is_upper_bound
        assert f"gpuledger {finding.command[0]} lstm.ledger" in text


def test_code_at_the_beginning_of_a_sentence_stays_as_it_is(
    open_report: Callable[..., Opened], rank: Rank, findings: tuple[Finding, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = replace(findings[0], evidence="half of it is kept", advice="optimizer.zero_grad() frees it earlier")
    monkeypatch.setattr("gpuledger.analyze.overview.findings.find_findings", lambda *_: (changed,))
    opened = open_report(ledger=rank.directory.parent)
    assert "Half of it is kept. optimizer.zero_grad() frees it earlier." in opened.text("#findings")


def test_a_click_searches_for_what_it_names(opened: Opened, findings: tuple[Finding, ...]) -> None:
    place = next(number for number, finding in enumerate(findings) if finding.search)
    opened.follow(opened.page.locator(".finding-title").nth(place))
    assert opened.page.locator("#search").input_value() == findings[place].search
    assert "parts match" in opened.text("#matched")
    assert opened.complaints == []


def test_a_hostile_name_in_a_finding_is_text(open_report: Callable[..., Opened]) -> None:
    opened = open_report(blocks=300, modules=8, hostile_names=True, cuda=False)
    assert opened.page.locator("#findings img, #findings script").count() == 0
    assert opened.complaints == []
    assert opened.requests == [opened.address]
