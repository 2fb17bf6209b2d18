"""Dynamic watts of operators that were measured on a GPU, by type and kind of number; a run keeps those of its GPU.

What a span is made of is told by the operator that launched it and by its inputs' kind of number; where a trace does
not tell that, by the name of the kernel.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuledger.model.run import Rank

NUMBERS = (
    ("bfloat16", re.compile(r"bf16|BFloat16|_tst_")),
    ("float16", re.compile(r"(?<!b)f16|\bHalf\b|__half|_hsh_|hgemm")),
    ("float64", re.compile(r"\bdouble\b|dgemm|f64")),
    ("float32", re.compile(r"f32|sgemm|\bfloat\b|_sss_")),
)
"""Kinds of numbers by the words in a kernel's name, the first that fits; sums are often of a wider kind, so the wide
ones come last. ``tst``, ``hsh`` and ``sss`` are cuBLAS's letters for the kinds of A, B and the sum."""


@dataclass(frozen=True)
class MeasuredType:
    """One type of operator on one kind of number. ``watts`` is the mean over its records, weighted by their time.

    ``low_w`` and ``high_w`` hold four fifths of the records; base power is taken off everywhere. ``of_model`` is how
    many times what a :class:`PowerModel` tells by FLOPs and bytes the watts are; None where it tells none.
    """

    operator: str
    numbers: str
    watts: float
    low_w: float
    high_w: float
    records: int
    of_model: float | None = None


@dataclass(frozen=True)
class WattTable:
    """What was measured on one GPU, and by whom: ``source`` in words.

    ``low_frac`` and ``high_frac`` are between what times the watts that ``of_model`` makes of a call's FLOPs and bytes
    those of four fifths of the records lie, by time, each told by the others of its type.
    """

    card: str
    source: str
    types: tuple[MeasuredType, ...]
    low_frac: float = 1.0
    high_frac: float = 1.0

    def place_of(self, operator: str, numbers: str) -> int | None:
        """Return the position in ``types`` of an operator on a kind of number; None where it was not measured."""
        for place, one in enumerate(self.types):
            if one.operator == operator and one.numbers == numbers:
                return place
        return None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value that :func:`table_from` reads."""
        return asdict(self)


def numbers_of(kernel: str) -> str:
    """Return the kind of number that a kernel works on, by its name; "" where it does not tell."""
    return next((name for name, words in NUMBERS if words.search(kernel)), "")


def table_from(value: Mapping[str, Any]) -> WattTable:
    """Return the table that :meth:`WattTable.to_json` wrote."""
    names = [field.name for field in fields(MeasuredType)]
    types = tuple(MeasuredType(**{name: one[name] for name in names if name in one}) for one in value["types"])
    bounds = {name: float(value[name]) for name in ("low_frac", "high_frac") if name in value}
    return WattTable(str(value["card"]), str(value["source"]), types, **bounds)


def table_of(rank: Rank) -> WattTable | None:
    """Return the table that a run keeps of its GPU; None where nothing was measured on such a GPU."""
    value = rank.manifest.measured_watts
    return None if value is None else table_from(value)
