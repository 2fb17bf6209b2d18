"""Keyword files: dictionaries of groups. Each group is a list of keywords, which are tried in order.

    [layer]
    RNN = ["rnn"]                       # these letters anywhere in the entry's name
    Embedding = ["weight:*embed*"]      # a * stands for anything; the whole name has to fit
    Head = ["re:head[0-9]+$"]           # a regular expression, found anywhere in the name
    Attention = ["class:*Attention*"]   # the class of the entry's module, or of one that holds it
    Weights = ["category:weight"]       # the entry's category

    extends = "tbd"                     # above the tables: one of gpuledger's own files, or a list of them

Of what a file extends, a group of the same name gets its keywords too, and groups of its own are tried first.

A file comes from anybody. Expressions are matched by RE2, whose time grows with the length of the name and with
nothing else, so that none can hang us.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuledger.errors import InputError
from gpuledger.files.reading import NotTomlError, load_toml

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

NAME, CLASS, CATEGORY = "name", "class", "category"
SUBSTRING, WHOLE, REGEX = "substring", "whole", "regex"
OTHERS, UNTRACKABLE = "Others", "Untrackable"
RESERVED_GROUPS = (OTHERS, UNTRACKABLE)
RESERVED_DICTIONARIES = (
    "schema_version", "rank", "device_idx", "device_name", "instant", "allocated_bytes", "untrackable_bytes",
    "untrackable", "overlaps", "notes", "ranks", "extends",
)  # fmt: skip
"""Keys of ``group --json`` beside the dictionaries."""
MAX_FILE_BYTES = 1 << 18
MAX_KEYWORDS = 5_000
_FIELDS = {"class:": CLASS, "category:": CATEGORY}
_REGEX_PREFIX = "re:"
_SHAPES = (r"(?m)^[ \t]*\[?[ \t]*[\"']?{}", r"(?m)^[ \t]*[\"']?{}[\"']?[ \t]*=", "{}")
"""How the name of a dictionary, that of a group in it, and a keyword stand in a line."""
HINT = 'Write [dictionary] tables with lines such as  RNN = ["rnn", "re:lstm[0-9]+"]'


@dataclass(frozen=True)
class Keyword:
    """One keyword: which ``field`` of an entry it is looked for in, how (``kind``), and as what (``pattern``)."""

    field: str
    kind: str
    pattern: str

    def find(self, texts: pa.Array) -> NDArray[np.bool_]:
        """Return which of ``texts`` (strings) it matches.

        Raises:
            ValueError: it is a regular expression that RE2 does not read.
        """
        import pyarrow.compute as pc

        if self.kind == WHOLE:
            found = pc.equal(texts, self.pattern)
        elif self.kind == SUBSTRING:
            found = pc.match_substring(texts, self.pattern)
        else:
            found = pc.match_substring_regex(texts, self.pattern)
        matches: NDArray[np.bool_] = found.to_numpy(zero_copy_only=False).astype(bool, copy=False)
        return matches


@dataclass(frozen=True)
class KeywordGroup:
    """One group: an entry falls into it where any of its keywords matches."""

    name: str
    keywords: tuple[Keyword, ...]


@dataclass(frozen=True)
class Dictionary:
    """Groups in the order in which they are tried: the first that matches takes the entry."""

    name: str
    groups: tuple[KeywordGroup, ...]


@dataclass(frozen=True)
class KeywordFile:
    """The contents of a keyword file. ``expected_bytes`` is the GPU memory in use, if the file states it."""

    dictionaries: tuple[Dictionary, ...]
    expected_bytes: int | None = None
    notes: tuple[str, ...] = ()
    extends: tuple[str, ...] = ()

    def added_to(self, base: KeywordFile) -> KeywordFile:
        """Return the file ``base`` with this one's groups, keywords and dictionaries added."""
        own = {one.name: one for one in self.dictionaries}
        joined = [_joined(one, own.pop(one.name)) if one.name in own else one for one in base.dictionaries]
        expected = base.expected_bytes if self.expected_bytes is None else self.expected_bytes
        return KeywordFile((*joined, *own.values()), expected, (*base.notes, *self.notes), base.extends)


def _joined(base: Dictionary, own: Dictionary) -> Dictionary:
    """Return ``base`` with the keywords of groups that both have, and before them the groups that ``own`` alone has."""
    added = {group.name: group for group in own.groups}
    groups = [
        KeywordGroup(group.name, (*group.keywords, *added.pop(group.name).keywords)) if group.name in added else group
        for group in base.groups
    ]
    return Dictionary(base.name, (*added.values(), *groups))


def parse_keyword(text: str) -> Keyword:
    """Return the keyword that ``text`` writes.

    Raises:
        ValueError: it is empty, or a regular expression that cannot be read; the message says which.
    """
    field = next((field for prefix, field in _FIELDS.items() if text.startswith(prefix)), NAME)
    pattern = text.partition(":")[2] if field != NAME else text
    if pattern.startswith(_REGEX_PREFIX):
        keyword = Keyword(field, REGEX, pattern.removeprefix(_REGEX_PREFIX))
    elif "*" in pattern:
        keyword = Keyword(field, REGEX, "(?s)^" + ".*".join(map(re.escape, pattern.split("*"))) + "$")
    else:
        keyword = Keyword(field, SUBSTRING if field == NAME else WHOLE, pattern)
    if not keyword.pattern:
        raise ValueError("the keyword is empty")
    _check_expression(keyword)
    return keyword


def parse_keyword_file(text: str, place: str) -> KeywordFile:
    """Return the dictionaries of a keyword file in TOML.

    Raises:
        InputError: not TOML, no dictionary, an empty list, an unknown key or a bad expression; it says in which line.
    """
    try:
        document = load_toml(text)
    except NotTomlError as error:
        raise InputError(f"{place}: line {error.line}: not a keyword file: {error.reason}", hint=HINT) from error
    if not document:
        raise InputError(f"{place}: the file has no dictionaries", hint=HINT)
    reader = _Reader(text, place)
    extends = reader.extended(document.pop("extends", ()))
    dictionaries = tuple(reader.dictionary(name, value) for name, value in document.items())
    if sum(len(group.keywords) for one in dictionaries for group in one.groups) > MAX_KEYWORDS:
        raise InputError(f"{place}: more than {MAX_KEYWORDS:,} keywords")
    return KeywordFile(dictionaries, extends=extends)


@dataclass(frozen=True)
class _Reader:
    """Turns the values of a file into dictionaries; ``text`` is there to say in which line something is wrong."""

    text: str
    place: str

    def extended(self, value: Any) -> tuple[str, ...]:
        """Return the names of the files that this one extends."""
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise self._error(("extends",), "extends: must be the name of a keyword file", 'such as extends = "tbd"')
        return tuple(names)

    def dictionary(self, name: str, value: Any) -> Dictionary:
        if not isinstance(value, dict):
            raise self._error((name,), f"unknown key {name!r}, expected a table such as [layer]")
        if name in RESERVED_DICTIONARIES:
            raise self._error((name,), f"{name!r} is reserved and cannot name a dictionary", "Choose another name")
        if not value:
            raise self._error((name,), f"dictionary {name!r} has no groups")
        return Dictionary(name, tuple(self._group(name, group, keywords) for group, keywords in value.items()))

    def _group(self, dictionary: str, name: str, value: Any) -> KeywordGroup:
        place = (dictionary, name)
        if not isinstance(value, list):
            raise self._error(place, f"unknown key {name!r}, expected a list of keywords")
        if name in RESERVED_GROUPS:
            raise self._error(place, f"{name!r} is reserved and cannot name a group", "Choose another name")
        if not value:
            raise self._error(place, f"{name} has no keywords", "Add a keyword, or remove the group")
        return KeywordGroup(name, tuple(self._keyword(place, text) for text in value))

    def _keyword(self, place: tuple[str, ...], text: Any) -> Keyword:
        if not isinstance(text, str):
            raise self._error(place, f"{place[-1]}: a keyword must be a string, not {type(text).__name__}")
        try:
            return parse_keyword(text)
        except ValueError as error:
            raise self._error((*place, text), f"{place[-1]}: {error}", _keyword_hint(text)) from error

    def _error(self, words: tuple[str, ...], message: str, hint: str = HINT) -> InputError:
        return InputError(f"{self.place}: line {self._line(words)}: {message}", hint=hint)

    def _line(self, words: tuple[str, ...]) -> int:
        """Return the number of the line of a dictionary, of a group in it, of a keyword in that; the nearest found."""
        text = re.sub(r"(?m)^[ \t]*#.*$", lambda comment: " " * len(comment[0]), self.text)
        position = 0
        for word, shape in zip(words, _SHAPES, strict=False):
            found = re.compile(shape.format(re.escape(word))).search(text, position)
            position = found.start() if found else max(text.find(word, position), position)
        return text.count("\n", 0, position) + 1


def _check_expression(keyword: Keyword) -> None:
    import pyarrow as pa

    try:
        keyword.find(pa.array([""]))
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ").splitlines()[0]
        raise ValueError(f"{keyword.pattern!r:.80} is not a regular expression: {reason:.120}") from error


def _keyword_hint(text: str) -> str:
    if not text.partition("re:")[2]:
        return "Write at least one letter"
    return "Use RE2 syntax, which has no look-around and no back-references, or remove re: to match the text itself"
