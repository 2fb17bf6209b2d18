"""A section of the report is registered in one place: its data, heading, help and script all reach the page."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from synthetic import load_run
from toy_section import TOY_SCRIPT, toy_section
from watched_runs import watch_run

from gpuledger.analyze.view.view import build_view
from gpuledger.report.html.definitions import Definition
from gpuledger.report.html.payload import build_payload
from gpuledger.report.html.report_page import asset, own_script, render_html
from gpuledger.report.html.sections.registry import SECTIONS, definitions

if TYPE_CHECKING:
    from pathlib import Path

    from gpuledger.report.html.sections.section import Section


@pytest.fixture
def toy(tmp_path: Path) -> Section:
    return toy_section(tmp_path)


def payload_in(text: str) -> dict[str, Any]:
    found = re.search(r'id="data">([^<]*)<', text)
    assert found
    payload: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return payload


def test_a_section_is_one_entry_and_one_script(toy: Section, tmp_path: Path) -> None:
    run = load_run(tmp_path / "run.ledger", blocks=50)
    text = render_html(build_view(run), (*SECTIONS, toy))
    payload = payload_in(text)
    assert payload["views"][0]["toy_blocks"] == build_view(run).devices[0].summary.peak_allocated_bytes
    assert '<section id="toy-section">\n<h2>Toy &amp; play</h2>\n<div id="toy"></div>\n</section>' in text
    assert payload["definitions"]["toy_blocks"]["meaning"] == "what a toy holds"
    assert TOY_SCRIPT in text
    assert text.index(TOY_SCRIPT) < text.index("\nlet REPORT")


def test_what_is_not_registered_is_not_in_the_page(tmp_path: Path) -> None:
    text = render_html(build_view(load_run(tmp_path / "run.ledger", blocks=50)), SECTIONS[:-3])
    assert 'id="balance-section"' not in text
    assert "balance" not in payload_in(text)["views"][0]
    assert "drawBalance(view)" not in text


def test_a_watched_card_goes_without_what_it_has_no_data_for(toy: Section, tmp_path: Path) -> None:
    run = watch_run(tmp_path / "w.ledger", [1, 2])
    (view,) = build_payload(build_view(run), (*SECTIONS, toy))["views"]
    assert view["without"] == ["findings", "lines", "bars", "compiled", "balance", "toy"]


def test_every_section_has_its_script_register_it() -> None:
    registered = set(re.findall(r'registerSection\("(\w+)"', own_script()))
    drawn_by_the_app = {"timeline", "instant"}
    assert registered | drawn_by_the_app == {section.name for section in SECTIONS}
    assert "registerSection" not in asset("js/app.js")


def test_a_term_or_a_key_is_given_once(toy: Section, tmp_path: Path) -> None:
    twice = replace(toy, help={"unaccounted": Definition("a", "b", "c")})
    with pytest.raises(ValueError, match="section toy: unaccounted: already defined"):
        definitions((*SECTIONS, twice))
    again = replace(toy, data=lambda device, page: {"balance": 1})
    run = load_run(tmp_path / "run.ledger", blocks=50)
    with pytest.raises(ValueError, match="section toy: balance: already in the payload"):
        build_payload(build_view(run), (*SECTIONS, again))


def test_every_term_that_the_markup_or_a_script_asks_for_is_defined() -> None:
    markup = "".join(section.markup for section in SECTIONS)
    asked = set(re.findall(r'data-define="([^"]+)"', markup)) | set(re.findall(r'definition: "([^"]+)"', own_script()))
    assert asked
    assert asked <= set(definitions())
