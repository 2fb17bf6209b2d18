"""Tags: step, phase, module and scope at the time of an allocation, as a short text stored with the allocation.

A token consists of short pieces: the visit (one period in one phase of one step), the module, and the scope if there is
one. Building it needs no lookup and writes nothing while the program runs. Its id in the journal is assigned when
events are drained. No other module parses tokens.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import deque

from gpuledger.collect.adapter.other_threads import Exclusive, take_all
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import Part

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SCOPE_MARK = "~"
_TOKEN = re.compile(r"(N)\.(N)(?:\.(N)\.(N))?(?:~(N))?".replace("N", "[0-9a-z]{1,5}"))
"""Visit, module, flags, stack and scope. Longer numbers are not gpuledger's, and would not fit into the journal."""
_COLUMNS = ("tag_id", "step", "phase", "visit", "module_id", "scope_id", "stack_id", "flags")


def base36(number: int) -> str:
    """Return a non-negative number in base 36.

    It is short: the allocator stores tokens of up to 15 characters inline.
    """
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
        if not number:
            return digits


@functools.lru_cache(maxsize=1 << 16)
def suffix(module_id: int, flags: int = 0, stack_id: int = -1) -> str:
    """Return the part of a token that is the same in every visit. -1 means none."""
    plain = f".{base36(module_id + 1)}"
    return plain if not flags and stack_id < 0 else f"{plain}.{base36(flags)}.{base36(stack_id + 1)}"


def scope_piece(name_id: int) -> str:
    """Return the last part of a token inside a scope."""
    return f"{_SCOPE_MARK}{base36(name_id + 1)}"


def module_id_of(token: str) -> int:
    """Return the module id in a token; -1 if it has none, or if the text is not a token."""
    pieces = _pieces_of(token)
    return pieces[1] if pieces is not None else -1


def flags_of(token: str) -> int:
    """Return the flags in a token; 0 if it is not a token."""
    pieces = _pieces_of(token)
    return pieces[4] if pieces is not None else 0


def _pieces_of(token: str) -> tuple[int, int, int, int, int] | None:
    """Return ``(visit, module_id, scope_id, stack_id, flags)`` of a token, -1 for none; None if it is not a token."""
    found = _TOKEN.fullmatch(token)
    if found is None:
        return None
    visit, module, flags, stack, scope = found.groups("0")
    return int(visit, 36), int(module, 36) - 1, int(scope, 36) - 1, int(stack, 36) - 1, int(flags, 36)


class TagTable:
    """Stores the step and phase of each visit, and assigns ids to tokens when they are drained."""

    def __init__(self) -> None:
        self._visits: dict[int, tuple[int, int]] = {}
        self._visit_numbers = itertools.count()
        self._numbers: dict[str, int] = {}
        self._rows: deque[tuple[int, ...]] = deque()
        self._next = itertools.count()

    def begin_visit(self, step: int, phase: Phase) -> str:
        """Return the part of a token that identifies a new visit."""
        number = next(self._visit_numbers)  # not the length: several threads can begin a visit
        self._visits[number] = step, int(phase)
        return base36(number)

    def number(self, token: str) -> int:
        """Return a token's id in the journal; -1 for an empty token or for metadata that the program itself has set."""
        known = self._numbers.get(token)
        if known is None:
            known = self._numbers[token] = self._write_down(token)
        return known

    def _write_down(self, token: str) -> int:
        pieces = _pieces_of(token)
        if pieces is None or pieces[0] not in self._visits:
            return -1
        number = next(self._next)
        self._rows.append((number, *self._visits[pieces[0]], *pieces))
        return number

    def drain(self, part: Part) -> None:
        """Write the tags added since the last drain into ``part``."""
        rows = take_all(self._rows)
        self._numbers.clear()
        if rows:
            part.add("tags", **dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True)))


class NameTable:
    """Assigns ids to names below outermost modules, for several threads."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, str], int] = {}
        self._new: deque[str] = deque()
        self._turn = Exclusive()

    def number(self, name: str, root_id: int) -> int:
        """Return the id of a name below an outermost module. Assigns one on first use."""
        key = (root_id, name)
        known = self._numbers.get(key)
        if known is not None:
            return known
        with self._turn:
            if key not in self._numbers:
                self._new.append(name)  # before the id can be used: names are in the journal by their order
                self._numbers[key] = len(self._numbers)
            return self._numbers[key]

    def drain(self, part: Part) -> None:
        """Write the names added since the last drain into ``part``."""
        part.names += take_all(self._new)
