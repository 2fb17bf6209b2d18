"""The one place where files of anybody are parsed: limits, and errors that name the file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.errors import InputError, UsageError
from gpuledger.files.reading import (
    MAX_DEPTH,
    load_toml,
    open_regular,
    parse_json,
    parse_toml,
    read_limited,
    read_text,
    reading,
    storable,
)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no digit"), "no digit"),
        (KeyError("steps"), "'steps' is missing"),
        (OverflowError("too large"), "OverflowError: too large"),
        (RecursionError("x"), "nested too deeply"),
        (MemoryError(), "not enough memory to read it"),
        (AttributeError("'int' object"), "AttributeError: 'int' object"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
    ],
)
def test_what_parsing_raises_names_the_file(error: Exception, words: str) -> None:
    with pytest.raises(InputError) as caught, reading("a.json: line 3", hint="try again"):
        raise error
    assert caught.value.message.startswith("a.json: line 3: ")
    assert caught.value.message.endswith(words)
    assert (caught.value.hint, caught.value.__cause__) == ("try again", error)


def test_our_own_errors_and_interrupts_go_through() -> None:
    with pytest.raises(UsageError, match="own"), reading("x"):
        raise UsageError("own")
    with pytest.raises(KeyboardInterrupt), reading("x"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"9" * 5_000, "of 5,000 digits is too large"),
        (b'{"a": -99999999999999999999999}', "is too large"),
        (b"1e999", "is too large"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), f"nested more than {MAX_DEPTH} levels deep"),
        (b"{}," * 4_000_000, "needs more than 512 MiB of memory"),
        (b"\xff\xfe", "codec can't decode"),
        (b"", "Expecting value"),
    ],
)
def test_json_is_refused_beyond_the_limits(content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=r"^x\.json: ") as caught:
        parse_json(content, "x.json")
    assert words in caught.value.message


def test_json_values_are_what_a_view_can_print() -> None:
    value = parse_json(rb'{"\udcff": ["\ud800 \ud83d\ude00", NaN, 1.5, 18446744073709551615]}', "x")
    assert value == {"\\udcff": ["\\ud800 😀", None, 1.5, 18446744073709551615]}


@given(st.text(st.characters(exclude_categories=())))
@settings(max_examples=50)
def test_storable_text_is_valid_and_valid_text_stays(text: str) -> None:
    storable(text).encode("utf-8")
    if text.isascii():
        assert storable(text) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a." * 20_000 + "b = 1", "line 1: not TOML|a key of more than 64 parts"),
        ("\n[" + '"a" . ' * 20_000 + "b]", "a key of more than 64 parts (line 2)"),
        ("a = " + "9" * 5_000, "Exceeds the limit"),
        ("a = " + "[" * 3_000, "nested too deeply"),
        ("a = 2020-99-99", "Expected newline"),
        ("a", "line 1"),
    ],
)
def test_toml_is_refused_beyond_the_limits(text: str, words: str) -> None:
    begun_s = time.process_time()
    with pytest.raises(InputError) as caught:
        parse_toml(text, "x.toml")
    assert time.process_time() - begun_s < 5
    assert any(part in caught.value.message for part in words.split("|"))


def test_toml_with_long_lines_and_texts_of_many_dots_is_read() -> None:
    text = f'a.b.c = "{"." * 50_000}"\nd = ["{"x.y " * 5_000}"]\n"{"q" * 100_000}" = 1\n'
    assert load_toml(text)["a"]["b"]["c"] == "." * 50_000


@pytest.mark.parametrize("kind", ["fifo", "directory", "socket"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(kind: str, tmp_path: Path) -> None:
    import socket

    place = tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place))
    with pytest.raises(InputError, match="x: not a regular file"):
        open_regular(place)


def test_a_device_without_end_is_read_to_the_limit() -> None:
    with pytest.raises(InputError, match="/dev/zero: larger than the limit of 4 MiB"):
        read_limited(Path("/dev/zero"))


def test_text_that_is_not_utf8_is_named_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc\xff")
    with pytest.raises(InputError, match="x: not UTF-8 text at byte 3"):
        read_text(tmp_path / "x")
