"""Measured power of operators on a GPU, by operator type and data type. A run contains those of its GPU.

The type of a span is that of the operator that launched it and of its inputs' data type. If a trace does not have
these, it is derived from the kernel's name.
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
"""Data types by the words in a kernel's name; the first match counts. Sums often have a wider type, so the wide types
come last. ``tst``, ``hsh`` and ``sss`` are cuBLAS's letters for the types of A, B and the sum."""


@dataclass(frozen=True)
class MeasuredType:
    """One type of operator with one data type. ``watts`` is the mean power of its records, weighted by time.

    ``low_w`` and ``high_w`` contain 80 % of the records. Base power is subtracted from all three. ``of_model`` is the
    ratio of ``watts`` to the power that a :class:`PowerModel` expects from FLOPs and bytes; None if it expects none.
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
    """Measured power on one GPU; ``source`` describes the measurements.

    ``low_frac`` and ``high_frac`` are the 80 % prediction interval of ``of_model``, as factors of the power that it
    gives for a call's FLOPs and bytes. They are weighted by time; each record is predicted from the others of its type.
    """

    card: str
    source: str
    types: tuple[MeasuredType, ...]
    low_frac: float = 1.0
    high_frac: float = 1.0

    def place_of(self, operator: str, numbers: str) -> int | None:
        """Return the position in ``types`` of an operator with a data type; None if it was not measured."""
        for place, one in enumerate(self.types):
            if one.operator == operator and one.numbers == numbers:
                return place
        return None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value that :func:`table_from` reads."""
        return asdict(self)


def numbers_of(kernel: str) -> str:
    """Return the data type that a kernel computes with, from its name; "" if unknown."""
    return next((name for name, words in NUMBERS if words.search(kernel)), "")


def table_from(value: Mapping[str, Any]) -> WattTable:
    """Return the table from the JSON value of :meth:`WattTable.to_json`."""
    names = [field.name for field in fields(MeasuredType)]
    types = tuple(MeasuredType(**{name: one[name] for name in names if name in one}) for one in value["types"])
    bounds = {name: float(value[name]) for name in ("low_frac", "high_frac") if name in value}
    return WattTable(str(value["card"]), str(value["source"]), types, **bounds)


def table_of(rank: Rank) -> WattTable | None:
    """Return the table of a run for its GPU; None if there are no measurements for this GPU."""
    value = rank.manifest.measured_watts
    return None if value is None else table_from(value)
