"""The file itself: whole, offline by construction, with nobody's name in its markup."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from synthetic import HOSTILE, load_run, make_run

from gpuledger.analyze.view.view import build_view
from gpuledger.cli.main import main
from gpuledger.model.run import Run
from gpuledger.report.html import report_page
from gpuledger.report.html.report_page import render_html

if TYPE_CHECKING:
    from pathlib import Path


class Page(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self.policy = ""
        self.title = ""
        self.tags: list[str] = []
        self._inside = ""
        self._attributes: dict[str, str | None] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append(tag)
        self._inside, self._attributes = tag, attributes
        self.links += [value or "" for key, value in attrs if key in ("src", "href", "action", "srcset", "data")]
        if attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes["content"] or ""
        if tag == "script":
            self.scripts.append((attributes, ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, text = self.scripts.pop()
            self.scripts.append((attributes, text + data))
        elif self._inside == "style":
            self.styles.append(data)
        elif self._inside == "title":
            self.title += data


def render(path: Path, **shape: Any) -> str:
    run = load_run(path / "run.ledger", **shape)
    return render_html(build_view(run))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(tmp_path_factory.mktemp("report"), blocks=300)


def test_nothing_in_the_page_leads_to_a_network(text: str) -> None:
    assert all(link.startswith("data:") for link in Page(text).links)
    assert not re.search(r"@import|url\(\s*['\"]?(?!data:)", "".join(Page(text).styles))


def test_the_policy_allows_these_scripts_and_nothing_else(text: str) -> None:
    page = Page(text)
    assert page.policy.startswith("default-src 'none'; ")
    assert "unsafe" not in page.policy
    code = [script for attributes, script in page.scripts if "type" not in attributes]
    assert len(code) == 3
    for content in [*code, *page.styles]:
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in page.policy


def test_the_markup_has_no_inline_handlers_or_styles(text: str) -> None:
    markup = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.DOTALL)
    assert not re.search(r"\son[a-z]+=|\sstyle=", markup)


def test_hostile_names_change_no_markup(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "hostile").mkdir()
    plain = render(tmp_path / "plain", blocks=300, modules=20)
    hostile = render(tmp_path / "hostile", blocks=300, modules=20, hostile_names=True)
    assert Page(hostile).tags == Page(plain).tags
    assert not any(name in hostile for name in HOSTILE if "<img" in name or "proto" in name)


@pytest.mark.parametrize("name", ["</title><script>alert(1)</script>", "nul\x00", "🔥 & <b>", "@DATA@"])
def test_the_title_is_text(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "name", name)
    run = load_run(tmp_path / "run.ledger", blocks=5)
    page = Page(render_html(build_view(run)))
    assert page.title == f"{name.replace(chr(0), chr(0xFFFD))} · gpuledger"
    assert len(page.scripts) == 4


def test_the_licences_of_vendored_code_travel_with_it(text: str) -> None:
    assert "Copyright (c) 2022 Leon Sorokin" in text
    assert "Copyright 2010-2026 Mike Bostock" in text


def test_a_small_report_is_small(text: str) -> None:
    assert len(text.encode()) < 240_000


class TestCommand:
    """``gpuledger report``."""

    @pytest.fixture(autouse=True)
    def _here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        make_run(tmp_path / "train.ledger", blocks=50, modules=3, ranks=2)

    def call(self, *arguments: str) -> Any:
        return CliRunner().invoke(main, ["report", *arguments])

    def test_the_name_is_the_runs(self, tmp_path: Path) -> None:
        result = self.call("train.ledger")
        assert result.exit_code == 0
        assert result.stdout == "train.html\n"
        assert (tmp_path / "train.html").read_text(encoding="utf-8").startswith("<!doctype html>")
        assert not list(tmp_path.glob(".*"))

    def test_an_existing_file_is_refused_before_the_work(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "train.html").write_text("mine")
        monkeypatch.setattr(report_page, "render_html", pytest.fail)
        result = self.call("train.ledger")
        assert result.exit_code == 2
        assert "train.html: already exists" in result.stderr
        assert "--force" in result.stderr
        assert (tmp_path / "train.html").read_text() == "mine"

    def test_force_overwrites(self, tmp_path: Path) -> None:
        (tmp_path / "out.html").write_text("mine")
        assert self.call("train.ledger", "-o", "out.html", "--force").exit_code == 0
        assert (tmp_path / "out.html").stat().st_size > 100_000

    def test_a_directory_is_not_a_file(self) -> None:
        result = self.call("train.ledger", "-o", ".")
        assert result.exit_code == 2
        assert "is a directory" in result.stderr

    def test_one_rank_is_smaller_than_all(self, tmp_path: Path) -> None:
        assert self.call("train.ledger", "--rank", "1", "-o", "one.html").exit_code == 0
        assert self.call("train.ledger", "--rank", "all", "-o", "all.html").exit_code == 0
        assert (tmp_path / "one.html").stat().st_size < (tmp_path / "all.html").stat().st_size
        assert self.call("train.ledger", "--rank", "7", "-o", "seven.html").exit_code == 2

    def test_a_missing_directory_is_one_line(self) -> None:
        result = self.call("train.ledger", "-o", "nowhere/out.html")
        assert result.exit_code == 1
        assert "nowhere" in result.stderr
        assert "Traceback" not in result.stderr

    def test_open_hands_the_file_to_a_browser(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        opened: list[str] = []
        monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
        assert self.call("train.ledger", "--open").exit_code == 0
        assert opened == [(tmp_path / "train.html").as_uri()]
