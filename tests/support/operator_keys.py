"""Keys of operators, made from the arguments a call would have."""

import torch

from gpuledger.operator_key import OperatorKey


def described(value):
    """Return one argument as a key has it."""
    if isinstance(value, torch.Tensor):
        shape, stride = list(value.shape), list(value.stride())
        return {"shape": shape, "dtype": str(value.dtype).removeprefix("torch."), "stride": stride}
    return [described(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def key_for(func, *args, **flags):
    """Return the key of ``func(*args)``."""
    return OperatorKey(
        str(func), tuple(described(value) for value in args), {"autocast": None, "tf32": False, "grad": False, **flags}
    )
