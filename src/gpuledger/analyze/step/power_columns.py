"""Select the power of each profiled span: measured for its operator, from the model, or typical for its kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.operator_work.measured_watts import WattTable, numbers_of
from gpuledger.analyze.operator_work.power_model import LEVELS, TF32, PowerModel
from gpuledger.analyze.operator_work.work_class import CLASSES, class_of
from gpuledger.analyze.step.work import StepWork

I64 = NDArray[np.int64]


def column_count(table: WattTable | None, model: PowerModel | None) -> int:
    """Return the number of columns: CLASSES, then measured types, then the model's levels, twice.

    The first set of levels is for calls of measured types, scaled by the measurement.
    """
    return len(CLASSES) + (0 if table is None else len(table.types)) + (0 if model is None else 2 * LEVELS)


def columns_of(work: StepWork, names: dict[int, str], table: WattTable | None, model: PowerModel | None) -> I64:
    """Return the power column of each span.

    Args:
        work: The profiled spans.
        names: Id -> name.
        table: Power measured on the GPU.
        model: Power expected from FLOPs and bytes.
    """
    first, which = alike(work.name_id, work.operator_id, work.kind, work.numbers)
    operators = [names.get(number, "") for number in work.operator_id[first].tolist()]
    kernels = [names.get(number, "") for number in work.name_id[first].tolist()]
    numbers = [str(one or "") for one in work.numbers[first].tolist()]
    kinds = zip(kernels, operators, work.kind[first].tolist(), numbers, strict=True)
    column = np.array([_column_of(*kind, table) for kind in kinds], dtype=np.int64)
    found = column[which]
    if model is None:
        return found
    of_model = np.array([_of_model(one, table) for one in column.tolist()], dtype=np.float64)
    is_product = np.array([CLASSES[class_of(one, "host")].name == "matrix" for one in operators], dtype=bool)
    is_told = ~np.isnan(work.flops) & ~np.isnan(of_model)[which]
    for numbers_of_kind, product in sorted(set(zip(numbers, is_product.tolist(), strict=True))):
        is_kind = np.array([one == numbers_of_kind for one in numbers], dtype=bool) & (is_product == product)
        rows = np.flatnonzero(is_told & is_kind[which])
        work_of_rows = work.flops[rows], work.moved_bytes[rows], work.duration_ns[rows] / 1e9
        watts = model.watts_of(*work_of_rows, numbers_of_kind, product=product)
        if watts is not None:
            levels = model.levels_of(watts * of_model[which[rows]])
            unmeasured = np.where(found[rows] < len(CLASSES), LEVELS, 0)
            found[rows] = column_count(table, None) + unmeasured + levels
    return found


def _of_model(column: int, table: WattTable | None) -> float:
    """Return the ratio of a column's power to the model's; NaN if the model does not apply."""
    if table is None or column < len(CLASSES):
        return 1.0
    measured = table.types[column - len(CLASSES)].of_model
    return np.nan if measured is None else measured


def alike(*columns: NDArray[Any]) -> tuple[I64, I64]:
    """Return the first row of each distinct combination of values, and the combination of each row."""
    plain = [column.astype(str) if column.dtype == object else column for column in columns]
    codes = np.stack([np.unique(one, return_inverse=True)[1].reshape(-1) for one in plain], axis=1)
    _, first, which = np.unique(codes, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), which.reshape(-1).astype(np.int64)


def _column_of(name: str, operator: str, kind: str, numbers: str, table: WattTable | None) -> int:
    """Return the column of a measured operator, or else of its kernel's kind."""
    of_type = "float32" if numbers == TF32 else numbers or numbers_of(name)
    measured = None if table is None or kind != "kernel" else table.place_of(operator, of_type)
    return class_of(name, kind) if measured is None else len(CLASSES) + measured
