from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.color import ColorSystem
from synthetic import HOSTILE

from gpuledger.report.base.colors import CATEGORY_COLORS
from gpuledger.report.base.phrases import column_unit, entry, of_capacity, percent, share
from gpuledger.report.base.terminal import MISSING, Bar, Cell, Terminal, TextColumn, TextTable, printable
from gpuledger.units import format_bytes

TEXTS = st.one_of(st.text(max_size=60), st.sampled_from(HOSTILE))
COLUMNS = (
    TextColumn("name", shrinks=True),
    TextColumn("bytes", right=True),
    TextColumn("mostly", optional=1),
    TextColumn(bar=True, optional=2),
)


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@given(TEXTS)
def test_nothing_a_terminal_would_obey_is_left(text: str) -> None:
    shown = printable(text)
    assert not any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in shown)
    assert printable(shown) == shown


@given(TEXTS)
def test_plain_text_is_left_alone(text: str) -> None:
    if all(unicodedata.category(c)[0] in "LNPS" or c == " " for c in text):
        assert printable(text) == text


@given(TEXTS, st.sampled_from(["ascii", "latin-1", "utf-8", "cp437"]))
def test_text_can_always_be_written(text: str, encoding: str) -> None:
    Terminal(80, encoding).text(text).encode(encoding)


@given(TEXTS, st.integers(4, 40), st.sampled_from(["ascii", "utf-8"]))
def test_shortened_fits_and_keeps_both_ends(text: str, cells: int, encoding: str) -> None:
    terminal = Terminal(cells, encoding)
    safe = terminal.text(text)
    short = terminal.shortened(safe, cells)
    assert cell_len(short) <= cells
    if cell_len(safe) <= cells:
        assert short == safe
    elif cells >= 12 and safe.isascii():
        assert short[0] == safe[0]
        assert short[-1] == safe[-1]


@given(
    st.lists(st.tuples(TEXTS, st.integers(0, 1 << 40), TEXTS.filter(lambda t: len(t) < 20)), max_size=5),
    st.integers(40, 160),
    st.sampled_from(["ascii", "utf-8"]),
)
def test_a_table_fits_and_its_numbers_stay_whole(rows: list[tuple[str, int, str]], width: int, encoding: str) -> None:
    bar = Bar(((0.5, "#4e79a7"), (0.5, "#f28e2b")))
    table = TextTable(COLUMNS, tuple((name, Cell(f"{size:,}"), mostly, bar) for name, size, mostly in rows))
    lines = table.lines(Terminal(width, encoding))
    assert len(lines) == len(rows) + 1
    assert all(cell_len(line) <= width for line in lines)
    assert all(f"{size:,}" in line for (_, size, _), line in zip(rows, lines[1:], strict=True))


def test_columns_are_left_out_from_the_highest_number() -> None:
    table = TextTable(COLUMNS, (("model.layers.31.mlp.gate", "72,908.8", "activation 80 %", Bar(((1.0, "#f28e2b"),))),))
    shown = {width: table.lines(Terminal(width))[1] for width in (30, 45, 55, 120)}
    assert "72,908.8" in shown[30]
    assert "…" in shown[30]
    assert "activation" not in shown[30]
    assert "█" not in shown[45]
    assert "█" in shown[120]
    assert "model.layers.31.mlp.gate" in shown[120]


@pytest.mark.parametrize("width", [8, 24])
def test_bars_are_as_long_as_their_share(width: int) -> None:
    terminal = Terminal()
    assert Bar(((1.0, "#f28e2b"),)).drawn(terminal, width) == "█" * width
    assert Bar(((0.25, "#f28e2b"), (0.75, "#4e79a7"))).drawn(terminal, width) == "█" * width
    assert Bar(((0.5, "#f28e2b"),)).drawn(terminal, width) == "█" * (width // 2)
    assert Bar(((0.0, "#f28e2b"),)).drawn(terminal, width) == ""
    assert Bar(((0.5, "#f28e2b"),)).drawn(Terminal(encoding="ascii"), width) == "#" * (width // 2)


def test_a_stacked_bar_shows_each_category_in_its_colour() -> None:
    terminal = Terminal(colors=ColorSystem.TRUECOLOR)
    weight, activation = CATEGORY_COLORS["weight"], CATEGORY_COLORS["activation"]
    drawn = Bar(((0.5, weight), (0.5, activation))).drawn(terminal, 4)
    assert drawn == "\x1b[38;2;78;121;167m██\x1b[0m\x1b[38;2;242;142;43m██\x1b[0m"


@pytest.mark.parametrize(
    ("environ", "colors"),
    [
        ({"TERM": "xterm-256color"}, ColorSystem.EIGHT_BIT),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, ColorSystem.TRUECOLOR),
        ({"TERM": "xterm"}, ColorSystem.STANDARD),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, None),
        ({"TERM": "dumb"}, None),
        ({}, None),
    ],
)
def test_colours_follow_the_environment(environ: dict[str, str], colors: ColorSystem | None) -> None:
    assert Terminal.of(Screen(), environ).colors == colors


def test_a_pipe_has_no_colour_and_no_width() -> None:
    terminal = Terminal.of(io.StringIO(), {"TERM": "xterm-256color", "COLORTERM": "truecolor"})
    assert (terminal.colors, terminal.width_cells) == (None, None)
    assert Terminal.of(io.StringIO(), {"COLUMNS": "40"}).width_cells == 40


def test_words_are_never_split_nor_lost() -> None:
    words = "the GPU was read at event 2042 when segments were larger"
    lines = Terminal(30).paragraph(words, "note   ", 7)
    assert " ".join(line.strip() for line in lines) == f"note   {words}"
    assert all(len(line) <= 30 for line in lines)


def test_shares_and_sizes_in_words() -> None:
    assert of_capacity(76_450_000_000, 150_754_820_096) == "71.2 GiB of 140.4 (51 %)"
    assert of_capacity(512 << 20, 150_754_820_096) == "512.0 MiB of 140.4 GiB (0.4 %)"
    assert of_capacity(512, None) == "512 B"
    assert [percent(part, 1000) for part in (0, 0.4, 1, 34, 99.6, 510)] == [
        "0.0 %",
        "< 0.1 %",
        "0.1 %",
        "3.4 %",
        "10 %",
        "51 %",
    ]
    assert share(1, None) == "–"
    assert share(510, 1000) == "51.0 %"


@given(st.lists(st.integers(1, 1 << 36), min_size=1, max_size=30))
def test_figures_of_a_column_add_up_as_they_stand(sizes: list[int]) -> None:
    unit = column_unit(sum(sizes))
    shown = [unit.amount(size).removeprefix("< ").replace(",", "") for size in sizes]
    total = float(unit.amount(sum(sizes)).replace(",", ""))
    assert sum(map(float, shown)) == pytest.approx(total, abs=0.1 * (len(sizes) + 1))


def test_amounts_that_are_missing_or_tiny_are_not_zero() -> None:
    unit = column_unit(353 << 20)
    assert unit.name == "MiB"
    assert [unit.amount(size) for size in (None, 0, 1, -1, 1 << 20)] == ["–", "0.0", "< 0.1", "> -0.1", "1.0"]
    assert column_unit(999).amount(999) == "999"


@given(st.integers(0, 1 << 50))
def test_a_column_has_the_unit_of_its_total_and_shows_the_same_figure(total: int) -> None:
    number, name = format_bytes(total).split(" ")
    unit = column_unit(total)
    assert unit.name == name
    shown = float(unit.amount(total).replace(",", ""))
    assert shown == pytest.approx(float(number), abs=0.051)
    assert unit.bytes == 1 or len(unit.amount(total).replace(",", "")) >= len("1.000")


def test_a_column_has_as_many_decimals_as_its_changes_need() -> None:
    assert column_unit(100 << 20, 20 << 10).amount(20 << 10) == "0.020"
    assert column_unit(100 << 20, 50 << 20).amount(50 << 20) == "50.00"


@pytest.mark.parametrize("width", [40, 60, 80, None])
def test_an_entry_fits_and_loses_no_word(width: int | None) -> None:
    text = "793.2 MiB of 140.4 GiB (0.6 %) on cuda:0 NVIDIA H200, in step 2, backward of layers.0 (Linear)"
    lines = entry(Terminal(width), "Peak memory", text, "second", cells=20)
    assert " ".join(" ".join(lines).split()) == f"Peak memory {text} second"
    assert all(len(line) <= (width or 200) for line in lines)
    assert not any(line.endswith(("793.2", "140.4", "(0.6")) for line in lines)


@pytest.mark.parametrize("dash", [MISSING, Cell(MISSING)])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_an_optional_column_of_dashes_is_left_out(dash: str | Cell, encoding: str) -> None:
    columns = (TextColumn("name"), TextColumn("share", right=True, optional=1), TextColumn("before", right=True))
    table = TextTable(columns, (("a", dash, MISSING), ("b", "", MISSING)))
    head, *rows = table.lines(Terminal(80, encoding))
    assert head.split() == ["name", "before"]
    assert [len(row.split()) for row in rows] == [2, 2]
    known = TextTable(columns, (("a", dash, MISSING), ("b", "3 %", MISSING)))
    assert known.lines(Terminal(80, encoding))[0].split() == ["name", "share", "before"]


def test_an_optional_column_without_any_text_is_left_out() -> None:
    columns = (TextColumn("name"), TextColumn("note", optional=1), TextColumn("class"))
    assert TextTable(columns, (("a", "", ""), ("b", " ", ""))).lines(Terminal()) == ["name  class", "a", "b"]
    assert TextTable(columns, (("a", "", "A"), ("b", "new", ""))).lines(Terminal())[0] == "name  note  class"
    assert TextTable(columns, ()).lines(Terminal()) == ["name  note  class"]
