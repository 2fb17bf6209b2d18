"""Keys of operators, made from the arguments a call would have."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.method import Mode
from gpuledger.ops.measure.measure import Task


def described(value: object) -> Any:
    """Return one argument as a key has it."""
    if isinstance(value, torch.Tensor):
        shape, stride = list(value.shape), list(value.stride())
        return {"shape": shape, "dtype": str(value.dtype).removeprefix("torch."), "stride": stride}
    return [described(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def key_for(func: Callable[..., object], *args: object, **flags: object) -> OperatorKey:
    """Return the key of ``func(*args)``."""
    return OperatorKey(
        str(func), tuple(described(value) for value in args), {"autocast": None, "tf32": False, "grad": False, **flags}
    )


def tasks_of_keys(keys: Iterable[OperatorKey]) -> list[Task]:
    """Return a task for each operator, as one whose inputs' reuse is not known: rotating."""
    return [Task(key, Mode.ROTATING) for key in dict.fromkeys(keys)]
