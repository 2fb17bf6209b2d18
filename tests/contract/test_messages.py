"""Errors, hints and notes: plain words, short sentences, one form. ``tools/list_messages.py`` lists them."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest
from folders import ROOT
from plain_words import long_sentences, unplain_words

sys.path.insert(0, str(ROOT / "tools"))

from list_messages import VALUE, Message, list_messages, main

COMMANDS = ("gpuledger ", "pip install ")
"""Beginnings of a hint that is a command to run; any other hint is a sentence."""


@cache
def messages() -> list[Message]:
    """Return the messages of gpuledger; not listed while tests are collected, which each worker does."""
    return list_messages()


def plain(message: Message) -> str:
    return message.text.replace(VALUE, "X")


def named(kind: str) -> list[Message]:
    return [one for one in messages() if one.kind == kind]


def test_the_list_has_the_messages_of_every_package() -> None:
    packages = {one.file.partition("/")[0] for one in messages()}
    assert {
        "analyze",
        "cards",
        "cli",
        "collect",
        "files",
        "formats",
        "model",
        "ops",
        "services",
        "simulate",
    } <= packages
    assert len(named("error")) > 400
    assert len(named("hint")) > 200
    assert len(named("note")) > 100


def test_words_are_plain() -> None:
    found = {str(one): [str(word) for word in words] for one in messages() if (words := unplain_words(plain(one)))}
    assert found == {}


def test_sentences_are_short() -> None:
    assert [str(one) for one in messages() if long_sentences(plain(one))] == []


def test_an_error_is_one_line_without_a_period() -> None:
    wrong = [str(one) for one in named("error") if one.text.endswith((".", "!")) or "\n" in one.text]
    assert wrong == []


def test_a_hint_is_a_command_or_a_sentence_without_a_period() -> None:
    starts = [one for one in named("hint") if not one.text.startswith((" ", VALUE, *COMMANDS))]
    assert [str(one) for one in starts if not one.text[0].isupper()] == []
    assert [str(one) for one in named("hint") if one.text.endswith(".")] == []


PLANTED = '''
"""A docstring is no message: it may say anything."""

WHY = "The recording ended early."


def _hint_for(name):
    return f"Did you mean {name}?" if name else "Record a run first"


def check(path, notes, say):
    if path is None:
        raise UsageError(f"{path}: no such run", hint="gpuledger run train.py")
    notes.append(f"{path} has no steps: " + ("its loop has none." if path else "unknown."))
    say("gpuledger: done")
    message = f"{path}: too short"
    raise InputError(message) from ValueError("a column" " is missing")
'''


def test_each_kind_of_message_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.py").write_text(PLANTED)
    assert [(one.kind, one.text) for one in list_messages(tmp_path)] == [
        ("note", "The recording ended early."),
        ("hint", "Did you mean {…}?"),
        ("hint", "Record a run first"),
        ("error", "{…}: no such run"),
        ("hint", "gpuledger run train.py"),
        ("note", "its loop has none."),
        ("line", "gpuledger: done"),
        ("error", "{…}: too short"),
        ("error", "a column is missing"),
    ]
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "one.py:4: note: The recording ended early."
