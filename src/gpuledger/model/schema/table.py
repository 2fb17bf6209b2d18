"""What a table of a run is: its rows, and its columns with type, unit, meaning and source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Column:
    """One column. ``type`` is one of int8, int32, int64, float64, bool, string, label (a dictionary-coded string)."""

    name: str
    type: str
    unit: str
    meaning: str
    source: str
    nullable: bool = False


@dataclass(frozen=True)
class Table:
    """One table: what a row is, and its columns."""

    name: str
    row: str
    columns: tuple[Column, ...]

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns in order."""
        return tuple(column.name for column in self.columns)

    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema; nullability and units are kept in the fields' metadata."""
        return self._schema

    @cached_property
    def _schema(self) -> pa.Schema:
        import pyarrow as pa

        kinds = {
            "int8": pa.int8(),
            "int32": pa.int32(),
            "int64": pa.int64(),
            "float64": pa.float64(),
            "bool": pa.bool_(),
            "string": pa.string(),
            "label": pa.dictionary(pa.int8(), pa.string()),
        }
        return pa.schema(
            pa.field(column.name, kinds[column.type], column.nullable, {"unit": column.unit}) for column in self.columns
        )


DEVICE = Column("device_idx", "int32", "", "torch's device index; -1 is the CPU", "torch")
"""The column that says on which device, in every table that has one."""
