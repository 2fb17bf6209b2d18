"""Every help in plain words: an imperative first, short sentences, units and defaults, and 80 columns."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from plain_words import long_sentences, unplain_words

from gpuledger.cli.main import COMMANDS, Commands, main
from gpuledger.cli.ops.group import COMMANDS as OPS_COMMANDS
from gpuledger.integrations import pytest_marks, pytest_plugin

PACKAGE = Path(pytest_plugin.__file__).parents[1]
SOURCES = sorted([*PACKAGE.glob("cli/**/*.py"), *PACKAGE.glob("integrations/pytest_*.py")])

COLUMNS = 80
IMPERATIVES = (
    "Break", "Capture", "Check", "Combine", "Compare", "Convert", "Estimate", "Export", "Fit", "Generate", "Import",
    "List", "Measure", "Merge", "Monitor", "Plot", "Predict", "Query", "Record", "Show", "Sum", "Write",
)  # fmt: skip
"""Verbs that a help may begin with."""
WITHOUT_DEFAULT = ("--pid",)
"""Options that take a number and have no default: a process is given, or none is meant."""
UNITS = {"TIME": r"\d+ ?(?:ms|s|m|min)\b", "SIZE": r"\d ?[GM]iB\b", "SHARE": r"%", "N%": "percent", "SHAPE": r"\dx\d"}
"""What a value of this kind has in its help or default: an example with its unit."""


def commands(group: Commands = main, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its words, groups too."""
    yield " ".join(words), group
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, Commands):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


ALL = dict(commands())
OPTIONS = {
    f"{name} {max(one.opts, key=len)}".strip(): one
    for name, command in ALL.items()
    for one in command.params
    if isinstance(one, click.Option)
}
NUMBERS = ("integer", "integer range", "float", "float range")
NUMERIC = [place for place, one in OPTIONS.items() if one.type.name in NUMBERS and one.opts[0] not in WITHOUT_DEFAULT]
WITH_UNIT = [place for place, one in OPTIONS.items() if one.metavar in UNITS]


def body_of(command: click.Command) -> str:
    """Return the help of a command as prose, a paragraph after the other."""
    paragraphs = (command.help or "").replace("\b\n", "").split("\n\n")
    return "\n\n".join(" ".join(one.split()) for one in paragraphs if not one.startswith("Formats:"))


def text_of(option: click.Option) -> str:
    """Return the help of an option with its default, as a reader sees it."""
    default = f"  [default: {option.default}]" if option.show_default else ""
    return f"{option.help or ''}{default}"


def test_there_are_all_commands() -> None:
    assert len(ALL) == 1 + len(COMMANDS) + len(OPS_COMMANDS)


@pytest.mark.parametrize("name", ALL)
def test_a_help_begins_with_an_imperative(name: str) -> None:
    first = body_of(ALL[name]).split("\n\n")[0]
    assert first.split()[0].rstrip(",") in IMPERATIVES, first
    assert first.endswith("."), first
    assert len(re.findall(r"[.!?](?:\s|$)", first)) == 1, first


@pytest.mark.parametrize("entries", [COMMANDS, OPS_COMMANDS], ids=["gpuledger", "ops"])
def test_the_list_of_commands_has_the_first_line_of_each_help(entries: dict[str, object]) -> None:
    group = main if entries is COMMANDS else ALL["ops"]
    assert isinstance(group, Commands)
    for name, entry in group.entries.items():
        command = ALL[name if group is main else f"ops {name}"]
        assert body_of(command).split("\n\n")[0] == entry.summary


@pytest.mark.parametrize("name", ALL)
def test_a_help_has_plain_words_and_short_sentences(name: str) -> None:
    text = body_of(ALL[name])
    assert [str(one) for one in unplain_words(text)] == []
    assert long_sentences(text) == []


@pytest.mark.parametrize("place", OPTIONS)
def test_an_option_has_plain_words_and_short_sentences(place: str) -> None:
    text = OPTIONS[place].help or ""
    assert [str(one) for one in unplain_words(f"{text} {OPTIONS[place].metavar or ''}")] == []
    assert long_sentences(text) == []
    assert re.match(r"[A-Z]|[a-z-]+(?:, [a-z-]+)*: ", text), text
    assert re.search(r"\.(?: \[default: [^\]]+\])?$", " ".join(text.split())), text


@pytest.mark.parametrize("place", NUMERIC)
def test_a_number_has_a_default(place: str) -> None:
    assert "[default: " in text_of(OPTIONS[place])


@pytest.mark.parametrize("place", WITH_UNIT)
def test_a_quantity_has_a_unit_and_a_default(place: str) -> None:
    option = OPTIONS[place]
    text = text_of(option)
    assert re.search(UNITS[option.metavar or ""], text), text
    assert "[default: " in text or option.multiple


@pytest.mark.parametrize("name", ALL)
def test_a_help_fits_a_terminal(name: str) -> None:
    result = CliRunner().invoke(main, [*name.split(), "--help"], terminal_width=COLUMNS)
    assert [line for line in result.stdout.splitlines() if len(line) > COLUMNS] == []


class Options:
    """Takes the place of pytest's parser and of a group of options, and keeps their texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def getgroup(self, _name: str, description: str) -> Options:
        """Return where the group's options go."""
        self.texts.append(f"{description}.")
        return self

    def addoption(self, _name: str, **settings: Any) -> None:
        """Keep the text of an option."""
        self.texts.append(f"{settings['help']} {settings.get('metavar', '')}")

    def addini(self, _name: str, text: str, **_: Any) -> None:
        """Keep the text of a setting."""
        self.texts.append(text)


def test_the_options_and_marks_of_the_pytest_plugin_have_plain_words() -> None:
    options: Any = Options()
    pytest_plugin.pytest_addoption(options)
    assert len(options.texts) == 6
    for text in (*options.texts, *pytest_marks.DESCRIPTIONS):
        assert ([str(one) for one in unplain_words(text)], long_sentences(text)) == ([], [])


def texts_in(tree: ast.Module) -> Iterator[str]:
    """Yield the texts in a source, docstrings left out."""
    parents = (one for one in ast.walk(tree) if isinstance(one, ast.Module | ast.ClassDef | ast.FunctionDef))
    docstrings = {id(one.body[0].value) for one in parents if one.body and isinstance(one.body[0], ast.Expr)}
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in docstrings:
            yield one.value


@pytest.mark.parametrize("source", SOURCES, ids=[str(one.relative_to(PACKAGE)) for one in SOURCES])
def test_what_a_command_prints_has_plain_words(source: Path) -> None:
    texts = texts_in(ast.parse(source.read_text("utf-8")))
    assert [str(one) for text in texts if " " in text for one in unplain_words(text)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Hold a run to a budget.", "Hold a run to"),
        ("The card is full.", "card"),
        ("Ends with 5.", "Ends with 5"),
        ("What the database lacks.", "lacks"),
        ("`--card` of the operator database: train.ledger.", ""),
        ("It is accounted for in J.", ""),
    ],
)
def test_the_list_of_words_finds_what_it_is_for(text: str, found: str) -> None:
    assert (found in [one.found for one in unplain_words(text)]) if found else (unplain_words(text) == [])


def test_a_long_sentence_is_found() -> None:
    assert long_sentences("word " * 29) == [" ".join(["word"] * 29)]
    assert long_sentences("word " * 28 + "\n\n" + "word " * 28) == []
