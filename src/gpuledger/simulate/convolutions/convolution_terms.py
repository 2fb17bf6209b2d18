"""Terms of a convolution's workspace, and features on which cuDNN's choice of algorithm may depend.

Source: 80,075 convolutions on an H200 (bench/estimate/conv_workspaces.py). Nearly every workspace is a sum of a few
terms: data, weights and results in channels last, with channels padded to 16 bytes; partial sums of a weight gradient
in float32; and for groups, data with padded channels per group. cuDNN's heuristics decide which sum it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.simulate.convolutions.convolution_rows import COLUMNS, LAST, PLACE, Row

Numbers = NDArray[np.float64]
FORWARD, DATA_GRADIENT, WEIGHT_GRADIENT = 0, 1, 2
"""cuDNN's operations. The forward of a transposed convolution is the data gradient of a normal one, and vice versa."""
_VECTOR_BYTES, _FLOAT_BYTES, _MIB = 16, 4, float(1 << 20)
_PROCESSORS, _TILE = 132, 128
_GROUPS_AT_ONCE = 8
_SHARES = (
    0.02, 0.05, 0.1, 0.15, 0.2, 0.27, 0.35, 0.43, 0.5, 0.6, 0.75, 0.9, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0,
    5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0,
)  # fmt: skip
_PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128)
_EXTRA_MIB = (1, 2, 4, 8, 16, 24, 32, 48)
_LIMIT = PLACE["groups"] + 1


def key_of(row: Row) -> Row:
    """Return the part of a row that cuDNN sees: both tensors have the same format, and the bias is added later."""
    return (*row[:_LIMIT], int(LAST in (row[PLACE["data_format"]], row[PLACE["weight_format"]])))


def twin_of(key: Row) -> Row:
    """Return the key of the same shape in the other half-precision dtype. cuDNN mostly chooses the same algorithm."""
    dtype = PLACE["dtype"]
    return (*key[:dtype], (0, 2, 1)[key[dtype]], *key[dtype + 1 :])


def _up(count: Numbers, step: Any) -> Numbers:
    filled: Numbers = -(-count // step) * step
    return filled


def result_sizes(got: dict[str, Numbers]) -> list[Numbers]:
    """Return the result sizes along three axes; 1 along an axis that a convolution does not have."""
    sides = []
    for axis in range(3):
        size, edge, step = (got[f"{name}{axis}"] for name in ("size", "padding", "stride"))
        reach = got[f"dilation{axis}"] * (got[f"kernel{axis}"] - 1) + 1
        grown = (size - 1) * step - 2 * edge + reach + got[f"more{axis}"]
        made = np.where(got["transposed"] == 1, grown, (size + 2 * edge - reach) // np.maximum(step, 1) + 1)
        sides.append(np.where(axis < got["dims"], made, 1))
    return sides


def describe(keys: Any) -> dict[str, Numbers]:
    """Return name -> float64[n], one value per key.

    ``large`` is the input of a convolution and ``small`` its output; for a transposed one the other way round.
    """
    table = np.asarray(keys, dtype=np.float64).reshape(-1, _LIMIT + 1)
    got = {name: table[:, index] for index, name in enumerate(COLUMNS[:_LIMIT])}
    transposed = got["transposed"] == 1
    width = np.where(got["dtype"] == 0, 4.0, 2.0)
    made = np.where(transposed, got["weight1"] * got["groups"], got["weight0"])
    read_places = np.prod([np.where(axis < got["dims"], got[f"size{axis}"], 1) for axis in range(3)], axis=0)
    made_places = np.prod(result_sizes(got), axis=0)
    sizes = {
        "large_channels": np.where(transposed, made, got["channels"]),
        "small_channels": np.where(transposed, got["channels"], made),
        "large_places": np.where(transposed, made_places, read_places),
        "small_places": np.where(transposed, read_places, made_places),
    }
    kernels = [np.maximum(got[f"kernel{axis}"], 1) for axis in range(3)]
    results = result_sizes(got)
    by_axis = {f"kernel{axis}": kernels[axis] for axis in range(3)}
    by_axis |= {f"stride{axis}": np.maximum(got[f"stride{axis}"], 1) for axis in range(3)}
    by_axis |= {f"size{axis}": np.maximum(got[f"size{axis}"], 1) for axis in range(3)}
    by_axis |= {f"result{axis}": results[axis] for axis in range(3)}
    widest = {name: np.max([got[f"{name}{axis}"] for axis in range(3)], axis=0) for name in _WIDEST}
    numbers = {name: got[name] for name in ("batch", "groups", "dims", "transposed")} | sizes | widest | by_axis
    numbers |= {
        "brain": (got["dtype"] == 2) * 1.0,
        "width": width,
        "last": table[:, _LIMIT],
        "kernel": np.prod(kernels, axis=0),
    }
    numbers["flat"] = (kernels[0] == 1) + 2.0 * (kernels[1] == 1)
    numbers["large_each"] = sizes["large_channels"] // got["groups"]
    numbers["small_each"] = sizes["small_channels"] // got["groups"]
    return numbers | _byte_sizes(numbers)


_WIDEST = ("stride", "dilation", "padding")


def _byte_sizes(n: dict[str, Numbers]) -> dict[str, Numbers]:
    """Return bytes of data, results and weights, with and without padded channels."""
    vector = _VECTOR_BYTES // n["width"]
    large = n["batch"] * n["large_places"] * n["width"]
    small = n["batch"] * n["small_places"] * n["width"]
    filled_large, filled_small = _up(n["large_channels"], vector), _up(n["small_channels"], vector)
    each = np.where(n["groups"] == 1, filled_large, n["large_each"])
    return {
        "X": large * n["large_channels"], "Y": small * n["small_channels"],
        "Xf": large * filled_large, "Yf": small * filled_small,
        "W": n["small_channels"] * n["large_each"] * n["kernel"] * n["width"],
        "Wf": filled_small * each * n["kernel"] * n["width"],
        "vector": vector,
    }  # fmt: skip


def sums(n: dict[str, Numbers], operation: int) -> dict[str, Numbers]:
    """Return name -> possible workspace in bytes: sums of terms, multiples of data and result, round numbers."""
    large, small, weight = n["Xf"], n["Yf"], n["Wf"]
    found = {
        "0": np.zeros_like(large), "XWY": large + weight + small, "XY": large + small, "XW": large + weight,
        "WY": weight + small, "X": large, "Y": small, "W": weight, "xy": n["X"] + n["Y"],
        "xwy": n["X"] + n["W"] + n["Y"],
    }  # fmt: skip
    for step in (4, 8, 16, 32, 64):
        found |= _widened(n, step)
    for step in (1, 4, 8):
        found |= _some_groups(n, step)
    found |= {f"{share}xy": share * found["xy"] for share in _SHARES}
    for base in ("0", "XY", "XWY"):
        found |= {f"{base}+{size}M": found[base] + size * _MIB for size in _EXTRA_MIB}
    if operation == WEIGHT_GRADIENT:
        found |= _partial_sums(n, found)
    return found


def _widened(n: dict[str, Numbers], step: int) -> dict[str, Numbers]:
    """Return sums with the channels of each group padded to a multiple of ``step``."""
    more_large = _up(n["large_each"], step) / n["large_each"]
    more_small = _up(n["small_each"], step) / n["small_each"]
    large, small = n["X"] * more_large, n["Y"] * more_small
    named = {"X": large, "Y": small, "XY": large + small, "2XY": 2 * (large + small)}
    named["XWY"] = large + small + n["W"] * more_large * more_small
    return {f"{name}:{step}": value for name, value in named.items()}


def _some_groups(n: dict[str, Numbers], step: int) -> dict[str, Numbers]:
    """Return sums of the groups that cuDNN converts at once, with their channels padded to a multiple of ``step``."""
    share = _at_once(n)
    more_large = _up(n["large_each"], step) / n["large_each"]
    more_small = _up(n["small_each"], step) / n["small_each"]
    large, small, weight = share * n["X"] * more_large, share * n["Y"] * more_small, n["W"] * more_large * more_small
    named = {"XY": large + small, "XWY": large + share * weight + small, "XW": large + share * weight}
    return {f"{name}/g:{step}": value for name, value in named.items()}


def _at_once(n: dict[str, Numbers]) -> Numbers:
    """Return the share of the groups that cuDNN converts at once: at most eight of them.

    Source: 1,300 grouped convolutions on an H200 (bench/estimate/conv_workspaces.py --set nets). With 12 to 256 groups,
    most workspaces are 8 / groups of the bytes of data, weights and results.
    """
    share: Numbers = np.minimum(_GROUPS_AT_ONCE, n["groups"]) / n["groups"]
    return share


def _partial_sums(n: dict[str, Numbers], found: dict[str, Numbers]) -> dict[str, Numbers]:
    """Return workspaces with a weight gradient in several parts: a fixed number, per image, or per multiprocessor."""
    parts: dict[str, Any] = {str(count): float(count) for count in _PARTS}
    parts |= {"N": n["batch"], "2N": 2 * n["batch"], "N/2": n["batch"] / 2, "p": _PROCESSORS // _tiles(n)}
    floats = n["Wf"] / n["width"] * _FLOAT_BYTES
    sums_of = {f"{base}+{name}w": found[base] + count * floats for base in _BASES for name, count in parts.items()}
    share = _at_once(n)
    base = share * (n["X"] + n["W"] + n["Y"])
    sums_of |= {f"XWY/g+{name}w": base + share * count * floats for name, count in parts.items()}
    return sums_of | {f"{name}W": count * n["Wf"] for name, count in parts.items()}


_BASES = ("0", "XY", "XWY", "X", "Y")


def _tiles(n: dict[str, Numbers], side: int = _TILE) -> Numbers:
    """Return the number of square tiles of a weight gradient."""
    return np.ceil(n["small_channels"] / side) * np.ceil(n["large_each"] * n["kernel"] / side)


def features(n: dict[str, Numbers]) -> NDArray[np.float32]:
    """Return the features, float32[n, features]: sizes, their divisibility, products and ratios."""
    read = n["batch"] * n["large_places"]
    made = n["batch"] * n["small_places"]
    depth = n["large_each"] * n["kernel"]
    several = n["groups"] > 1
    listed = [n[name] for name in (*_PLAIN, *_BY_AXIS)]
    listed += [n["Xf"] + n["Yf"], n["Xf"], n["Yf"], n["Wf"], n["W"] / n["groups"], n["groups"] * n["batch"]]
    listed += [n["X"] / n["Y"], n["W"] / (n["X"] + n["Y"]), n["W"] / n["Y"], n["large_channels"] / n["small_channels"]]
    listed += [n["large_each"] % n["vector"], n["small_each"] % n["vector"]]
    listed += [n[name] % step for name in ("large_channels", "small_channels") for step in (2, 8, 64)]
    listed += [n[name] % step for name in ("large_places", "small_places") for step in (4, 8)]
    listed += [_divided(n[name]) for name in _SIZES]
    listed += [made, read, depth, made / depth, made * n["small_channels"] * depth, _tiles(n), _tiles(n, _TILE // 2)]
    listed += [
        np.ceil(made / _TILE) * np.ceil(n["small_channels"] / _TILE) / _PROCESSORS,
        np.ceil(read / _TILE) * np.ceil(n["large_channels"] / _TILE) / _PROCESSORS,
        np.ceil(made / _TILE) * np.ceil(n["small_channels"] / (2 * _TILE)) / _PROCESSORS,
        several * ((n["large_each"] == 1) * 1.0 + (n["small_each"] == 1)),
    ]
    return np.stack(listed, axis=1).astype(np.float32)


_SIZES = ("large_channels", "small_channels", "large_places", "small_places")
_PLAIN = (
    "width", "brain", "batch", *_SIZES, "large_each", "small_each", "groups", "kernel", "stride", "dilation", "padding",
    "last", "dims", "transposed", "flat", "X", "Y", "W",
)  # fmt: skip
_BY_AXIS = tuple(f"{name}{axis}" for name in ("kernel", "stride", "size", "result") for axis in range(3))


def _divided(count: Numbers) -> Numbers:
    """Return the exponent of the largest power of two that divides a number, at most 6."""
    power: Numbers = np.sum([count % step == 0 for step in (2, 4, 8, 16, 32, 64)], axis=0)
    return power
