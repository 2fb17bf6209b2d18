"""Result rows as ml-operator-profiling printed them: a layer, its input size, and what was measured, in one line.

Its datasets are pickles of live modules, which are not read. A layer is rebuilt from its printed form, which is parsed
and not evaluated, and followed on a virtual GPU to learn which operator it runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpuledger.errors import InputError
from gpuledger.files.reading import MIB, read_text, reading
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.workloads.captures import Place, capture_step, place_named
from gpuledger.simulate.gpu.dispatch import NotModelledError

LARGEST_BYTES = 64 * MIB
LONGEST_LINE = 1 << 14
METHOD = {"mode": "hot", "how": "eager", "source": "ml-operator-profiling", "value": "mean of blocks"}
_ROW = re.compile(r"(?P<layer>\w+\(.*\)) (?P<size>\([\d, ]+\)) (?P<rest>\S+(?: \S+){13})")
_DATE = "%Y-%m-%d_%H-%M-%S"


@dataclass(frozen=True)
class ImportedRows:
    """What was in the rows; ``unread`` names each line that gave no record, and why."""

    keys: tuple[OperatorKey, ...]
    environment: Environment
    records: tuple[Record, ...]
    unread: tuple[str, ...]


def read_rows(paths: Iterable[Path], card: str) -> ImportedRows:
    """Return the records in files of printed rows.

    Args:
        paths: The files.
        card: The GPU that they were measured on: no row says so.

    Raises:
        InputError: a file cannot be read.
    """
    environment = Environment(card, None, "unknown", None, {"source": "ml-operator-profiling"})
    keys: dict[str, OperatorKey] = {}
    records, unread = [], []
    with place_named("h200", lambda _sentence: None) as place:
        for path in paths:
            for number, line in enumerate(_lines(path), 1):
                if not line.strip():
                    continue
                try:
                    with reading(f"{path}:{number}", ""):
                        key, record = _row(line.strip(), place, environment)
                except InputError as error:
                    unread.append(error.message)
                    continue
                keys[key.digest] = key
                records.append(record)
    return ImportedRows(tuple(keys.values()), environment, tuple(records), tuple(unread))


def _lines(path: Path) -> list[str]:
    return read_text(path, LARGEST_BYTES).splitlines()


def _row(line: str, place: Place, environment: Environment) -> tuple[OperatorKey, Record]:
    """Return a row's key and record; ValueError where it has none."""
    found = _ROW.fullmatch(line) if len(line) <= LONGEST_LINE else None
    if not found:
        raise ValueError("not a row of results")
    key = _key(_layer(found["layer"]), ast.literal_eval(found["size"]), place)
    values = found["rest"].split()
    time_s, energy_mj, _, energy_std_mj = map(float, values[:4])
    started = datetime.strptime(values[11], _DATE).replace(tzinfo=UTC)
    block = {
        "time_std_ns": float(values[13]) * 1e9,
        "energy_std_j": energy_std_mj / 1e3,
        "iterations": int(values[4]),
        "runtime_s": float(values[5]),
        "power_w": float(values[6]),
        "power_std_w": float(values[7]),
    }
    return key, Record(
        key.digest,
        environment.digest,
        METHOD,
        time_median_ns=time_s * 1e9,
        energy_median_j=energy_mj / 1e3,
        blocks=(block,),
        measured_ns=int(started.timestamp()) * 1_000_000_000,
    )


def _layer(text: str) -> nn.Module:
    """Return the layer that printed itself as ``text``."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"{text}: expected a layer")
    kind = getattr(nn, call.func.id, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ValueError(f"{call.func.id}: torch.nn has no such layer")
    try:
        arguments = [_literal(node) for node in call.args]
        named = {str(one.arg): _literal(one.value) for one in call.keywords}
        layer: nn.Module = kind(*arguments, **named)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{text}: {error}") from error
    return layer.eval()


def _literal(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def _key(layer: nn.Module, size: tuple[int, ...], place: Place) -> OperatorKey:
    """Return the key of the one operator that a layer runs."""
    placed = layer.to(place.device)
    data = torch.randn(size, device=place.device)
    try:
        with torch.no_grad():
            uses = capture_step(lambda: placed(data), place).uses
    except (RuntimeError, TypeError, ValueError, NotModelledError) as error:
        raise ValueError(f"{layer}: {' '.join(str(error).split())}") from error
    if len(uses) != 1:
        raise ValueError(f"{layer}: runs {len(uses)} different operators, expected one")
    return uses[0].key
