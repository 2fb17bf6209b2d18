"""Damages valid inputs: bytes, JSON values, columns of journals and Parquet tables. A seed always damages alike."""

from __future__ import annotations

import io
import json
import random
import zipfile
from typing import Any

import numpy as np

PIECES = (
    *(b",", b'"', b"'", b"\n", b"\0", b"\r\n", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xb3\xbf", b"\xff", b"-", b"1e999"),
    *(b"9" * 400, b"9" * 5_000, b"nan", b"[" * 3_000, b"{" * 3_000, b"(" * 500, b"x" * 70_000, b"." * 300, b"a." * 200),
    *(b"2020-99-99", b"&a [*a,*a]", b"<<: *a\n", b"\\ud800", b"[[", b"]]", b"{", b"}", b":", b"=", b"#", b"%", b"\t"),
)
JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 255, 1 << 31, -(1 << 31), (1 << 63) - 1, 1 << 63, -(1 << 63), 10**30, 10**400),
    *(0.5, -1.5, 1e308, -1e308, float("nan"), float("inf"), "", "x", "0", "-1", "nan", "a/b", "../..", "\0", "\udcff"),
    *(
        "9" * 5_000,
        "x" * 2_000,
        "</script>",
        [],
        {},
        [[]],
        [None],
        [0],
        [-1, -1],
        {"": None},
        {"x": {"y": [1]}},
        [1] * 400,
    ),
)
_NUMBERS = (0, 1, -1, -2, 2, 7, 127, -128, 1 << 15, (1 << 31) - 1, -(1 << 31), 1 << 40, 1 << 47, 1 << 61, (1 << 63) - 1)
_DTYPES = ("i1", "i2", "i4", "i8", "u1", "u8", "f4", "f8", "?", "U4", "S3", "M8[ns]", "c16")


def damage_bytes(rng: random.Random, content: bytes) -> bytes:
    """Return bytes with pieces changed, cut out, doubled or put in."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 5)):
        place, length = rng.randint(0, len(data)), rng.randint(0, 40)
        what = rng.choice(("change", "flip", "cut", "double", "insert", "end", "number"))
        if what == "change":
            data[place : place + length] = rng.randbytes(length)
        elif what == "flip" and place < len(data):
            data[place] ^= 1 << rng.randrange(8)
        elif what == "cut":
            del data[place : place + length]
        elif what == "double":
            data[place:place] = data[place : place + 50 * length]
        elif what == "insert":
            data[place:place] = rng.choice(PIECES)
        elif what == "number":
            data[place : place + rng.randint(0, 3)] = str(rng.choice(_NUMBERS)).encode()
        elif what == "end" and rng.random() < 0.3:
            del data[place:]
    return bytes(data)


def damage_value(rng: random.Random, value: Any) -> Any:
    """Return a JSON value in which some inner values are others, are gone, come again, or are called otherwise."""
    for _ in range(rng.randint(1, 3)):
        value = _damage_once(rng, value)
    return value


def _damage_once(rng: random.Random, value: Any) -> Any:
    if not isinstance(value, dict | list) or not value or rng.random() < 0.08:
        return _other(rng, value)
    if isinstance(value, dict):
        name = rng.choice(sorted(value))
        roll = rng.random()
        if roll < 0.12:
            return {key: one for key, one in value.items() if key != name}
        if roll < 0.18:
            return {
                rng.choice((name + "x", "", "\udcff", "9" * 30)) if key == name else key: one
                for key, one in value.items()
            }
        return {**value, name: _damage_once(rng, value[name])}
    place = rng.randrange(len(value))
    roll = rng.random()
    if roll < 0.1:
        return value[:place] + value[place + 1 :]
    if roll < 0.2:
        return value[:place] + [value[place]] * rng.choice((2, 3, 50)) + value[place:]
    return [*value[:place], _damage_once(rng, value[place]), *value[place + 1 :]]


def _other(rng: random.Random, value: Any) -> Any:
    if isinstance(value, int) and rng.random() < 0.4:
        return rng.choice(
            (value + 1, -value, value * 1_000, value << 20, str(value), float(value % (1 << 60)), [value])
        )
    if isinstance(value, str) and rng.random() < 0.4:
        return rng.choice((value + "x", value[:-1], value * 3, value.upper(), [value], value + "\udcff"))
    return rng.choice(JUNK)


def to_json(value: Any) -> bytes:
    """Return a value as JSON text; numbers of any size, NaN and lone surrogates too."""
    return json.dumps(value).encode()


def damage_npz(rng: random.Random, content: bytes) -> bytes:
    """Return a journal's part with damaged columns, or a damaged text, still a whole archive."""
    arrays = _members(content)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(sorted(arrays))
        if name == "text":
            text = json.loads(arrays["text"].tobytes())
            arrays["text"] = np.frombuffer(to_json(damage_value(rng, text)), np.uint8)
        else:
            found = _damage_column(rng, arrays[name])
            arrays.pop(name) if found is None else arrays.update({name: found})
    return npz_bytes(arrays)


def _members(content: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(content)) as archive:
        return {name: archive[name] for name in archive.files}


def npz_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    """Return arrays as one ``.npz``."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, values in arrays.items():
            inner = io.BytesIO()
            np.save(inner, values, allow_pickle=values.dtype.hasobject)
            archive.writestr(f"{name}.npy", inner.getvalue())
    return stream.getvalue()


def _damage_column(rng: random.Random, values: np.ndarray) -> np.ndarray | None:
    kind = rng.choice(
        ("value", "value", "value", "many", "type", "cut", "twice", "shape", "shuffle", "constant", "gone")
    )
    if kind == "gone" or not values.size or not values.ndim:
        return None
    if kind in ("value", "many", "constant"):
        return _with_numbers(rng, values, kind)
    if kind == "type":
        return _as_type(values, rng.choice(_DTYPES))
    if kind == "cut":
        return values[: rng.randrange(values.size)]
    if kind == "twice":
        return np.concatenate([values, values[: rng.randint(1, values.size)]])
    if kind == "shape":
        return rng.choice((values.reshape(-1, 1), values[:1].reshape(()), values.astype(object)))
    return np.random.default_rng(rng.randrange(1 << 30)).permutation(values)


def _with_numbers(rng: random.Random, values: np.ndarray, kind: str) -> np.ndarray:
    changed = values.copy()
    count = {"value": 1, "many": max(values.size // 3, 1), "constant": values.size}[kind]
    rows = rng.sample(range(values.size), count)
    number = rng.choice((*_NUMBERS, float("nan"), 1e300)) if values.dtype.kind == "f" else rng.choice(_NUMBERS)
    if values.dtype.kind in "iu":
        number = int(np.array(number).astype(np.int64).astype(values.dtype))
    changed[rows] = number
    return changed


def _as_type(values: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        try:
            return values.astype(dtype)
        except (TypeError, ValueError):
            return values.astype("U4")


def damage_parquet(rng: random.Random, content: bytes) -> bytes:
    """Return a table with damaged columns, still whole Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(content))
    for _ in range(rng.randint(1, 2)):
        if not table.num_columns:
            break
        place = rng.randrange(table.num_columns)
        name, column = table.schema.names[place], table.column(place)
        try:
            table = _damage_table(rng, table, place, name, column)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            continue
    stream = io.BytesIO()
    pq.write_table(table, stream, compression=rng.choice(("zstd", "none", "snappy")))
    return stream.getvalue()


def _damage_table(rng: random.Random, table: Any, place: int, name: str, column: Any) -> Any:
    import pyarrow as pa

    what = rng.choice(("gone", "called", "null", "nulls", "value", "values", "type", "word", "rows", "none", "twice"))
    count = table.num_rows
    if what == "gone":
        return table.remove_column(place)
    if what == "called":
        return table.rename_columns([f"{one}x" if one == name else one for one in table.schema.names])
    if what == "rows":
        return table.slice(0, rng.randint(0, count))
    if what == "none":
        return table.slice(0, 0)
    if what == "twice":
        return pa.concat_tables([table, table])
    values = column.to_pylist()
    rows = rng.sample(range(count), max(count // 3, 1) if what.endswith("s") else 1) if count else []
    if what == "type":
        kind = rng.choice(
            (pa.string(), pa.int8(), pa.uint64(), pa.float64(), pa.null(), pa.list_(pa.int64()), pa.binary())
        )
        other: Any = None if kind in (pa.null(), pa.list_(pa.int64())) else "7" if kind == pa.string() else None
        return table.set_column(place, name, pa.array([other] * count, kind))
    number = None if what.startswith("null") else rng.choice(_NUMBERS)
    is_text = any(isinstance(value, str) for value in values)
    junk = None if what.startswith("null") else rng.choice(("", "x", "\0", "\u202e", "9" * 400, "y" * 3_000))
    for row in rows:
        values[row] = junk if is_text or what == "word" else number
    kind = pa.string() if is_text or what == "word" else column.type
    if pa.types.is_integer(kind) and number is not None:
        number = int(np.array(number).astype(np.int64).astype(str(kind)))
        for row in rows:
            values[row] = number
    return table.set_column(place, name, pa.array(values, kind))
