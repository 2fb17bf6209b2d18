"""Memory at one instant, broken down by category, module, phase, scope, tensor, source line or function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.instant import Instant, module_paths
from gpuledger.analyze.memory.lifetimes import I64, distinct, read_labels, read_lives, read_numbers, reserved_curve
from gpuledger.analyze.memory.lines.source_lines import FUNCTION, coded_lines
from gpuledger.errors import UsageError
from gpuledger.model.accounts import ROUNDING

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

CodedTexts = tuple[I64, list[str]]


@dataclass(frozen=True)
class Account:
    """Requested bytes of the live blocks with one combination of category, module, ...; "" for those not in use."""

    category: str
    module: str
    phase: str
    name: str
    bytes: int
    blocks: int
    scope: str = ""
    line: str = ""
    function: str = ""


@dataclass(frozen=True)
class Breakdown:
    """Memory at one instant by category, module, ..., largest first. The bytes sum to ``allocated_bytes``.

    One account has the category ``rounding``: allocated minus requested bytes. Its ``blocks`` are those that got more
    bytes than requested.
    """

    instant: Instant
    allocated_bytes: int
    requested_bytes: int
    active_bytes: int
    reserved_bytes: int
    accounts: tuple[Account, ...]


def break_down(
    rank: Rank, instant: Instant, by: tuple[str, ...] = ("category", "module"), depth: int | None = None
) -> Breakdown:
    """Return the bytes at ``instant``, with one account per distinct combination of ``by``.

    Args:
        rank: One process of a run.
        instant: From :mod:`gpuledger.analyze.memory.instant`.
        by: Any of ``category``, ``module``, ``phase``, ``scope``, ``tensor`` (its name, "" without one), ``line``
            and ``function``.
        depth: Truncate module paths and scopes to their first ``depth`` components.

    Raises:
        UsageError: ``by`` has an unknown name, or ``depth`` is below 1.

    Source: caching allocator's history, exact.
    """
    _check(by, depth)
    lives = read_lives(rank, instant.device_idx)
    live = lives.allocated_at(instant.index)
    requested, allocated = lives.requested_bytes[live], lives.allocated_bytes[live]
    accounts = _accounts_of(rank, instant.device_idx, by, live, requested, depth)
    rounded = int(allocated.sum() - requested.sum())
    if rounded:
        accounts.append(Account(ROUNDING, "", "", "", rounded, int((allocated != requested).sum())))
    return Breakdown(
        instant=instant,
        allocated_bytes=int(allocated.sum()),
        requested_bytes=int(requested.sum()),
        active_bytes=int(lives.allocated_bytes[lives.active_at(instant.index)].sum()),
        reserved_bytes=reserved_curve(rank, instant.device_idx).at(instant.index),
        accounts=tuple(sorted(accounts, key=_largest_first)),
    )


def accounts_outside_modules(rank: Rank, instant: Instant, by: tuple[str, ...]) -> tuple[Account, ...]:
    """Return what :func:`break_down` does of the blocks outside modules, in no order and without rounding."""
    lives = read_lives(rank, instant.device_idx)
    outside = lives.allocated_at(instant.index) & ~of_modules(rank, instant.device_idx)
    return tuple(_accounts_of(rank, instant.device_idx, by, outside, lives.requested_bytes[outside]))


def of_modules(rank: Rank, device_idx: int) -> NDArray[np.bool_]:
    """Return which blocks belong to a module."""
    found: NDArray[np.bool_] = coded_modules(rank, device_idx)[0] > 0
    return found


def _largest_first(one: Account) -> tuple[int | str, ...]:
    return -one.bytes, one.category, one.module, one.phase, one.name, one.line, one.function


def fold_path(path: str, depth: int | None) -> str:
    """Return the first ``depth`` components of a module path; the whole path for None."""
    return path if depth is None else ".".join(path.split(".")[:depth])


def fold_scope(path: str, depth: int | None) -> str:
    """Return the first ``depth`` components of a scope's path; the whole path for None."""
    return path if depth is None else "/".join(path.split("/")[:depth])


def coded_modules(rank: Rank, device_idx: int, depth: int | None = None) -> CodedTexts:
    """Return each block's module as a position in the list of paths, and that list.

    Position 0 is "", outside modules.
    """
    ids = read_numbers(rank, "blocks", "module_id", device_idx)
    return _coded(ids, {key: fold_path(path, depth) for key, path in module_paths(rank).items()}, "module")


def coded_categories(rank: Rank, device_idx: int, depth: int | None = None) -> CodedTexts:
    """Return each block's category as a position in the list of categories, and that list."""
    return _labelled(rank, "category", device_idx)


def _coded_phases(rank: Rank, device_idx: int, depth: int | None) -> CodedTexts:
    return _labelled(rank, "phase", device_idx)


def coded_texts(rank: Rank, device_idx: int, column: str) -> CodedTexts:
    """Return each block's text in a ``column`` of name ids (``name_id``, ``scope_id``), as positions and texts."""
    table = rank.table("names", ("name_id", "name"))
    names = dict(zip(table["name_id"].to_pylist(), table["name"].to_pylist(), strict=True))
    return _coded(read_numbers(rank, "blocks", column, device_idx), names, column.removesuffix("_id"))


def _coded_names(rank: Rank, device_idx: int, depth: int | None) -> CodedTexts:
    return coded_texts(rank, device_idx, "name_id")


def _coded_scopes(rank: Rank, device_idx: int, depth: int | None) -> CodedTexts:
    codes, texts = coded_texts(rank, device_idx, "scope_id")
    if depth is None:
        return codes, texts
    folded = [fold_scope(text, depth) for text in texts]
    positions = {text: position for position, text in enumerate(dict.fromkeys(folded))}
    return np.array([positions[text] for text in folded], dtype=np.int64)[codes], list(positions)


def _coded_lines(rank: Rank, device_idx: int, depth: int | None) -> CodedTexts:
    return coded_lines(rank, device_idx)


def _coded_functions(rank: Rank, device_idx: int, depth: int | None) -> CodedTexts:
    return coded_lines(rank, device_idx, FUNCTION)


_READERS: dict[str, Callable[[Rank, int, int | None], CodedTexts]] = {
    "category": coded_categories,
    "module": coded_modules,
    "phase": _coded_phases,
    "scope": _coded_scopes,
    "tensor": _coded_names,
    "line": _coded_lines,
    "function": _coded_functions,
}


def _labelled(rank: Rank, column: str, device_idx: int) -> CodedTexts:
    codes, labels = read_labels(rank, "blocks", column, device_idx)
    return codes + 1, ["other" if column == "category" else "", *labels]


def _coded(ids: I64, texts: dict[int, str], kind: str) -> CodedTexts:
    """Return ``ids`` as positions in a list of distinct texts, and that list.

    An id without a text is shown as a number.
    """
    points, place = distinct(ids)
    positions: dict[str, int] = {"": 0}
    found = [texts.get(key, f"({kind} {key})") if key >= 0 else "" for key in points.tolist()]
    codes = np.array([positions.setdefault(text, len(positions)) for text in found], dtype=np.int64)
    return codes[place], list(positions)


def sum_by_texts(coded: Sequence[CodedTexts], sizes: I64) -> list[tuple[tuple[str, ...], int, int]]:
    """Return ``(one text of each list, sum of sizes, number of blocks)`` for every combination that occurs."""
    combined = np.zeros(sizes.size, dtype=np.int64)
    for codes, texts in coded:
        _, combined = distinct(combined * len(texts) + codes)
    count = int(combined.max()) + 1 if combined.size else 0
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, combined, sizes)
    blocks = np.bincount(combined, minlength=count)
    example = np.zeros(count, dtype=np.int64)
    example[combined] = np.arange(combined.size)
    columns = [[texts[code] for code in codes[example].tolist()] for codes, texts in coded]
    return list(zip(zip(*columns, strict=True), total.tolist(), blocks.tolist(), strict=True))


def _accounts_of(
    rank: Rank, device_idx: int, by: tuple[str, ...], blocks: NDArray[np.bool_], sizes: I64, depth: int | None = None
) -> list[Account]:
    """Return one account per combination of ``by`` that some blocks have. ``sizes`` has the bytes of these only."""
    coded = {name: _READERS[name](rank, device_idx, depth) for name in dict.fromkeys(by)}
    return _accounts({name: (codes[blocks], texts) for name, (codes, texts) in coded.items()}, sizes)


def _accounts(coded: dict[str, CodedTexts], sizes: I64) -> list[Account]:
    """Return one account per combination of texts. What is not in ``coded`` is empty: the last element of each row."""
    place = {name: position for position, name in enumerate(coded)}
    wanted = ("category", "module", "phase", "tensor", "scope", "line", "function")
    category, module, phase, tensor, scope, line, function = (place.get(name, -1) for name in wanted)
    return [
        Account(
            category=texts[category],
            module=texts[module],
            phase=texts[phase],
            name=texts[tensor],
            bytes=size,
            blocks=blocks,
            scope=texts[scope],
            line=texts[line],
            function=texts[function],
        )
        for row, size, blocks in sum_by_texts(list(coded.values()), sizes)
        for texts in ((*row, ""),)
    ]


def _check(by: tuple[str, ...], depth: int | None) -> None:
    unknown = [name for name in by if name not in _READERS]
    if unknown or not by:
        raise UsageError(
            f"--by {','.join(by) or '(nothing)'}: unknown grouping", hint=f"Use one or more of {', '.join(_READERS)}"
        )
    if depth is not None and depth < 1:
        raise UsageError(f"--depth {depth}: expected 1 or more")
