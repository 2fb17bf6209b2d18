"""The ``_ANALYSIS`` JSON of the older log profiler: bytes and tags by keyword, ``{"bn": [4194304.0, ["(tag)."]]}``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuledger.errors import InputError
from gpuledger.formats.entries import Entries, LoggedEntry, UnreadParts
from gpuledger.formats.json_pull import Token, tokens
from gpuledger.formats.mxnet.tags import category_of
from gpuledger.formats.text_lines import shown

CATEGORY_OF_KEY = {
    "in_arg": "weight",
    "arg_grad": "gradient",
    "aux_state": "buffer",
    "optimizer": "optimizer_state",
    "workspace": "workspace",
    "(source)": "input",
    "(target)": "input",
    "(target_label)": "input",
    "(data)": "input",
}


def read_analysis(path: Path, unread: UnreadParts) -> tuple[Entries, tuple[str, ...]]:
    """Return an entry for each category of the file, and notes. Bytes of a tag are known only if it is the only one.

    Raises:
        InputError: it is not JSON of this form.
        OSError: it cannot be read.
    """
    entries = Entries(path.stat().st_size)
    tags_in_all = 0
    for key, size, tag, count in _categories(path):
        tags_in_all += count
        name = tag if count == 1 else key
        category = CATEGORY_OF_KEY.get(key) or category_of(name)
        if category == "activation" and "forward_features" not in tag:
            category = "other"
        try:
            if not size.is_integer():
                raise ValueError(f"{size:g} bytes is out of range")
            entries.add(LoggedEntry(name, int(size), category=category, alloc_index=-1))
        except (ValueError, OverflowError) as error:
            unread.add(f"{path.name}: {shown(key)}: {error}")
    return entries, (
        f"The analysis has sums of {tags_in_all:,} allocations by keyword. They include everything ever allocated.",
        "The analysis has no times, steps or phases, and no sum of allocations that match no keyword.",
    )


def _categories(path: Path) -> Iterator[tuple[str, float, str, int]]:
    """Yield keyword, bytes, first tag and number of tags."""
    stream = tokens(path)
    _expect(path, next(stream, None), "{")
    token = next(stream, None)
    if token is not None and token.kind == "}":
        return
    while True:
        key = _expect(path, token, "text").text
        _expect(path, next(stream, None), ":")
        _expect(path, next(stream, None), "[")
        size = _expect(path, next(stream, None), "number").number
        _expect(path, next(stream, None), ",")
        _expect(path, next(stream, None), "[")
        tag, count = _tags(path, stream)
        _expect(path, next(stream, None), "]")
        yield key, size, tag, count
        if _expect(path, next(stream, None), ",", "}").kind == "}":
            return
        token = next(stream, None)


def _tags(path: Path, stream: Iterator[Token]) -> tuple[str, int]:
    """Return the first of a list of tags without its wrapper ``(…).``, and the number of tags."""
    first, count = "", 0
    while True:
        token = _expect(path, next(stream, None), "text", "]", ",")
        if token.kind == "]":
            return first, count
        if token.kind == "text":
            count += 1
            first = first or token.text.strip().removesuffix(".").removeprefix("(").removesuffix(")")


def _expect(path: Path, token: Token | None, *kinds: str) -> Token:
    if token is None:
        raise InputError(f"{path}: cut off")
    if token.kind not in kinds:
        raise InputError(
            f"{path}: not an analysis: found {token.kind} {shown(token.text)}, expected {' or '.join(kinds)}"
        )
    return token
