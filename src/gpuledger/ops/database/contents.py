"""The content of a database as values, Arrow tables and Parquet."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.errors import InputError
from gpuledger.files.reading import parse_json, reading, reason_of
from gpuledger.files.writing import output
from gpuledger.model.parquet_parts import check_unpacked
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.records import Environment, Record, environment_from, record_from

if TYPE_CHECKING:
    import pyarrow as pa

    from gpuledger.ops.database.operator_database import OperatorDatabase

VERSION = 1
VERSION_KEY = b"gpuledger_book"
PARQUET = ".parquet"
AS_JSON = ("method", "blocks", "kernels")
"""Values of a record that are JSON text in tables."""

MEASURED = """CREATE VIEW measured AS
    SELECT keys.operator, keys.inputs, keys.flags, environments.card AS gpu, environments.driver, environments.torch,
        environments.cuda, records.*
    FROM records JOIN keys ON keys.digest = records.key_digest
    JOIN environments ON environments.digest = records.environment_digest"""
"""Every record with its operator and its environment."""


@dataclass(frozen=True)
class Contents:
    """Content of a database. ``keys`` and ``environments`` are by digest."""

    keys: Mapping[str, OperatorKey]
    environments: Mapping[str, Environment]
    records: tuple[Record, ...]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each record in the units people read, newest first."""
        for one in sorted(self.records, key=lambda one: -one.measured_ns):
            environment = self.environments[one.environment_digest]
            time_ns, ends = one.time_median_ns, (one.time_low_ns, one.time_high_ns)
            known = time_ns and ends[0] is not None and ends[1] is not None
            yield {
                "operator": self.keys[one.key_digest].text,
                "gpu": environment.card,
                "torch": environment.torch,
                "mode": str(one.method.get("mode", "")),
                "time_us": None if time_ns is None else time_ns / 1e3,
                "half_width_percent": 50 * (ends[1] - ends[0]) / time_ns if known else None,  # type: ignore[operator]
                "energy_mj": None if one.energy_median_j is None else one.energy_median_j * 1e3,
                "status": one.status if one.status == "ok" else f"{one.status}: {one.reason}",
            }


def contents_of(text: str) -> Contents:
    """Return the content of a database, or of a Parquet file exported from one.

    Raises:
        InputError: it does not exist, is damaged, or is of a newer version.
    """
    if text.endswith(PARQUET) and "://" not in text:
        return read_parquet(Path(text))
    from gpuledger.ops.database.operator_database import open_existing

    with open_existing(text) as database:
        contents = Contents(database.keys(), database.environments(), tuple(database.records()))
        _check_references(contents, database.url)
        return contents


def _check_references(contents: Contents, place: str) -> None:
    """Check that keys and environments of all records exist.

    Raises:
        InputError: one is missing.
    """
    for one in contents.records:
        if one.key_digest not in contents.keys or one.environment_digest not in contents.environments:
            raise InputError(f"{place}: damaged database: the key or environment of a record is missing")


def merge(database: OperatorDatabase, other: Contents) -> int:
    """Add all records of another database. Return the number of new ones."""
    before = len(database.records())
    database.put_keys(other.keys.values())
    for environment in other.environments.values():
        database.put_environment(environment)
    database.put_records(other.records)
    return len(database.records()) - before


# -- tables -----------------------------------------------------------------------------------------------------------


def tables_of(contents: Contents) -> dict[str, pa.Table]:
    """Return the tables ``keys``, ``environments`` and ``records``; nested values are JSON text."""
    import pyarrow as pa

    keys = [
        {"digest": digest, "operator": key.operator, "inputs": _text(key.inputs), "flags": _text(key.flags)}
        for digest, key in contents.keys.items()
    ]
    environments = [
        {"digest": digest, **one.to_json(), "flags": _text(one.flags)} for digest, one in contents.environments.items()
    ]
    return {
        "keys": pa.Table.from_pylist(keys, schema=_texts("digest", "operator", "inputs", "flags")),
        "environments": pa.Table.from_pylist(
            environments, schema=_texts("digest", "card", "driver", "torch", "cuda", "flags")
        ),
        "records": pa.Table.from_pylist([_row(one) for one in contents.records], schema=_record_schema()),
    }


def exchange_table(contents: Contents) -> pa.Table:
    """Return one table of everything: a row for each record, and one for each key that has none."""
    import pyarrow as pa

    measured = {one.key_digest for one in contents.records}
    rows = [
        {
            **_row(one),
            **_key_row(contents.keys[one.key_digest]),
            **_environment_row(contents.environments[one.environment_digest]),
        }
        for one in contents.records
    ]
    rows += [_key_row(key) for digest, key in contents.keys.items() if digest not in measured]
    names = ("operator", "inputs", "flags", "card", "driver", "torch", "cuda", "environment_flags")
    columns = [one for one in _record_schema() if not one.name.endswith("_digest")]
    schema = pa.schema([*_texts(*names), *columns], metadata={VERSION_KEY: str(VERSION)})
    return pa.Table.from_pylist(rows, schema=schema)


def write_parquet(contents: Contents, path: Path) -> None:
    """Write everything as one Parquet file."""
    import pyarrow.parquet as pq

    with output(path) as stream:
        pq.write_table(exchange_table(contents), stream, compression="zstd", compression_level=19)


def write_csv(contents: Contents, path: Path) -> None:
    """Write everything as one CSV file."""
    import pyarrow.csv as csv

    with output(path) as stream:
        csv.write_csv(exchange_table(contents), stream)


def read_parquet(path: Path, *, is_ours: bool = False) -> Contents:
    """Return the content of a file of :func:`write_parquet`.

    Args:
        path: The file.
        is_ours: It comes with gpuledger. Its cells are not checked, which is most of the time for other files.

    Raises:
        InputError: it is not such a file, damaged, or of a newer version.
    """
    import pyarrow.parquet as pq

    hint = "Write the file with: gpuledger ops export --to parquet"
    if not path.is_file():
        raise InputError(f"{path}: no such file", hint=hint)
    check_unpacked([path], str)
    with reading(path, hint=hint):
        table = pq.read_table(path)
        stated = (table.schema.metadata or {}).get(VERSION_KEY)
        version = None if stated is None else int(stated)
    if version is None:
        raise InputError(f"{path}: not an export of an operator database", hint=hint)
    if version > VERSION:
        raise InputError(
            f"{path}: database export version {version}, but this gpuledger reads up to version {VERSION}",
            hint="pip install --upgrade gpuledger",
        )
    with reading(path), _no_collection():
        return _from_rows(_decoded(table) if is_ours else table.to_pylist(), is_ours=is_ours)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no garbage: none of many thousand objects becomes any, and to go through them took most of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _decoded(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows with the values of records that are JSON text. One text of a column is decoded at once."""
    columns = {name: table[name].to_pylist() for name in table.column_names}
    for name in AS_JSON:
        columns[name] = json.loads(f"[{','.join(text or 'null' for text in columns[name])}]")
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _from_rows(rows: list[dict[str, Any]], *, is_ours: bool) -> Contents:
    key_from, record_of = (_own_key, _own_record) if is_ours else (_key, _record)
    keys: dict[tuple[str, ...], OperatorKey] = {}  # by their texts, which many rows share
    environments: dict[tuple[str, ...], Environment] = {}
    records = []
    for number, row in enumerate(rows, 1):
        try:
            texts = (row["operator"], row["inputs"], row["flags"])
            if texts not in keys:
                keys[texts] = key_from(row)
            if row["card"] is None:
                continue
            place = tuple(row[name] for name in (*_NAMES, "environment_flags"))
            if place not in environments:
                environments[place] = _environment(row)
            records.append(record_of(row, keys[texts].digest, environments[place].digest))
        except (InputError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"row {number:,}: {reason_of(error)}") from error
    return Contents(
        {one.digest: one for one in keys.values()}, {one.digest: one for one in environments.values()}, tuple(records)
    )


_NAMES = ("card", "driver", "torch", "cuda")
_VALUES = tuple(field.name for field in fields(Record) if not field.name.endswith("_digest"))


def _key(row: dict[str, Any]) -> OperatorKey:
    return OperatorKey.from_json(
        {"operator": row["operator"], "inputs": _value(row["inputs"]), "flags": _value(row["flags"])}
    )


def _own_key(row: dict[str, Any]) -> OperatorKey:
    return OperatorKey(row["operator"], tuple(json.loads(row["inputs"])), json.loads(row["flags"]))


def _own_record(row: dict[str, Any], key_digest: str, environment_digest: str) -> Record:
    values = {name: row[name] for name in _VALUES}
    return Record(
        key_digest, environment_digest, **{**values, "blocks": tuple(row["blocks"]), "kernels": tuple(row["kernels"])}
    )


def _environment(row: dict[str, Any]) -> Environment:
    return environment_from({**{name: row[name] for name in _NAMES}, "flags": _value(row["environment_flags"])})


def _value(text: str | None) -> Any:
    return parse_json((text or "").encode(), "a cell")


def _record(row: dict[str, Any], key_digest: str, environment_digest: str) -> Record:
    values = {name: row[name] for name in _VALUES}
    values |= {name: _value(values[name]) for name in AS_JSON}
    return record_from({"key_digest": key_digest, "environment_digest": environment_digest, **values})


def _row(record: Record) -> dict[str, Any]:
    values = {field.name: getattr(record, field.name) for field in fields(Record)}
    return values | {name: _text(values[name]) for name in AS_JSON}


def _key_row(key: OperatorKey) -> dict[str, Any]:
    return {"operator": key.operator, "inputs": _text(key.inputs), "flags": _text(key.flags)}


def _environment_row(environment: Environment) -> dict[str, Any]:
    values = environment.to_json()
    flags = values.pop("flags")
    return {**values, "environment_flags": _text(flags)}


def _text(value: Any) -> str:
    return json.dumps(value if not isinstance(value, Mapping) else dict(value), allow_nan=False, separators=(",", ":"))


def _texts(*names: str) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, pa.string()) for name in names])


def _record_schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {"measured_ns": pa.int64(), "flops": pa.int64(), "bytes": pa.int64()}
    texts = ("key_digest", "environment_digest", "status", "reason", *AS_JSON)
    kinds |= {name: pa.string() for name in texts}
    return pa.schema([(field.name, kinds.get(field.name, pa.float64())) for field in fields(Record)])
