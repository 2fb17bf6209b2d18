"""Replace operators of a simulated GPU by those of a real one, such as cuDNN's. Pure."""

from __future__ import annotations

from typing import Any

from gpuledger.operator_key import OperatorKey, is_tensor

MOST_IMAGES, MOST_CHANNELS = 880_801, 65_535
_RESERVE = {"shape": [0], "dtype": "uint8", "stride": [1]}


def as_on_card(key: OperatorKey) -> OperatorKey:
    """Return the key of the operator that a GPU with cuDNN runs for a call, often the same key.

    Source: the conditions under which PyTorch's batch norm calls cuDNN.
    """
    values = key.arguments
    if key.name == "native_batch_norm" and len(values) == 8 and _is_cudnns(*values[:5]):
        return OperatorKey("aten.cudnn_batch_norm.default", tuple(values), key.flags)
    if key.name == "native_batch_norm_backward" and len(values) == 10 and values[7]:
        gradient, x, *rest, _training, epsilon, _wanted = values
        if _is_cudnns(x, rest[0], rest[0], *rest[1:3]):
            return OperatorKey(
                "aten.cudnn_batch_norm_backward.default", (x, gradient, *rest, epsilon, _RESERVE), key.flags
            )
    return key


def _is_cudnns(x: Any, weight: Any, bias: Any, mean: Any, variance: Any) -> bool:
    """Return whether cuDNN runs a batch norm. In bfloat16 and on matrices, PyTorch's own kernel does."""
    if not all(map(is_tensor, (x, weight, bias, mean, variance))) or any("same" in one for one in (x, weight)):
        return False
    shape = x["shape"]
    fits = len(shape) >= 3 and shape[0] <= MOST_IMAGES and shape[1] <= MOST_CHANNELS
    return fits and x["dtype"] in ("float32", "float16", "float64") and weight["dtype"] != "bfloat16"
