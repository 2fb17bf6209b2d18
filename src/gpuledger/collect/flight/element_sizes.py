"""How many bytes the elements of a container keep alive: tensors, arrays, bytes and text, also inside other objects."""

from __future__ import annotations

import ctypes
import gc
import math
import sys
from collections import Counter, deque
from dataclasses import dataclass, replace
from itertools import islice
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any, NamedTuple

import torch

from gpuledger.collect.adapter.program_objects import (
    attributes_of,
    device_of,
    is_exactly,
    is_tensor,
    itemsize_of,
    known_sizes,
    storage_of,
)
from gpuledger.collect.flight.time_limit import CHECK_EVERY, TimeLimit

SAMPLE = 4
"""Number of elements, the last ones, that are looked into."""
MOST_OBJECTS = 256
"""Largest number of objects that are looked at in one element."""
MOST_INSIDE = 64
"""Largest number of objects of one container or instance that are followed."""
PREFIX_BYTES = 64

_NO_DISPATCH = torch.Tensor.__torch_dispatch__
PLACE_BYTES = 8
"""Bytes that every element takes in its container."""

_NUMBERS = (int, float, bool, complex, type(None))
_TEXTS = (bytes, bytearray, str)
_NOT_FOLLOWED = (type, ModuleType, FrameType, CodeType, BuiltinFunctionType)

_KNOWN = (list, tuple, dict, set, frozenset, deque, FunctionType)
"""Classes of which an object without referents keeps nothing. Others may keep what Python does not see."""


@dataclass(frozen=True)
class Data:
    """A tensor, an array, bytes or text. ``key`` is that of the memory; ``prefix`` are the first bytes of the values.

    ``prefix`` is None if it cannot be read without the GPU, and empty if all of it is one value. ``used_bytes`` are
    those of a tensor's own values: of a view, the memory has others, too.
    """

    key: int
    size_bytes: int
    prefix: bytes | None
    is_tensor: bool = False
    used_bytes: int = 0


def data_of(value: Any) -> Data | None:
    """Return the memory of a tensor, of an array, of bytes or of text; None for anything else."""
    if is_tensor(value):
        return _of_tensor(value)
    if is_exactly(value, *_TEXTS):
        start = value[:PREFIX_BYTES] if type(value) is not str else value[:PREFIX_BYTES].encode("utf-8", "replace")
        return Data(id(value), sys.getsizeof(value), _told(bytes(start)))
    numpy = sys.modules.get("numpy")
    if numpy is None or not issubclass(type(value), numpy.ndarray):
        return None
    array = numpy.ndarray
    root = value
    while issubclass(type(base := array.base.__get__(root)), array):
        root = base
    if issubclass(type(root), numpy.memmap):
        return None  # in a file
    if is_tensor(base):
        return data_of(base)
    size = int(array.nbytes.__get__(value))
    is_plain = size >= PREFIX_BYTES and array.flags.__get__(value).c_contiguous and not _dtype_of(value).hasobject
    address = array.__array_interface__.__get__(value)["data"][0] if is_plain else 0
    return Data(id(root), int(array.nbytes.__get__(root)), _read(address))


def last_elements(container: Any, count: int) -> list[Any]:
    """Return the last elements of a sequence, the last values of a dict, or some elements of a set; [] for the others.

    The container is not copied, which would take memory, and its own methods are not called.
    """
    kind = type(container)
    for base in (list, tuple):
        if issubclass(kind, base):
            return list(base.__getitem__(container, slice(-count, None)))
    for unordered in (set, frozenset):
        if issubclass(kind, unordered):
            return list(islice(unordered.__iter__(container), count))
    if issubclass(kind, deque):
        return list(islice(deque.__reversed__(container), count))[::-1]
    if issubclass(kind, dict):
        return list(islice(reversed(dict.values(container)), count))[::-1]
    return []


class ElementSize(NamedTuple):
    """Mean bytes and mean number of tensors that one element keeps, and no other of its container. 0 if unknown.

    ``unused_bytes`` are those of its tensors' storages that are not values of these tensors.
    """

    bytes: int = 0
    tensors: float = 0.0
    unused_bytes: int = 0


def size_of_element(container: Any, limit: TimeLimit) -> ElementSize:
    """Return what one of the last elements of a container keeps.

    Raises:
        OutOfTimeError: The time was over before all of these were seen.
    """
    last = last_elements(container, SAMPLE)
    owners = Counter[int]()
    found: dict[int, Data] = {}
    is_known = True
    for element in last:
        below, all_known = _data_below(element, limit)
        is_known = is_known and all_known
        owners.update(below.keys())
        found |= below
    if not last:
        return ElementSize()
    own = [data for key, data in found.items() if owners[key] == 1 or len(last) == 1]
    mean_bytes = sum(data.size_bytes for data in own) // len(last)
    tensors = sum(data.is_tensor for data in own) / len(last)
    unused_bytes = sum(data.size_bytes - data.used_bytes for data in own if data.is_tensor) // len(last)
    return ElementSize(max(mean_bytes, PLACE_BYTES if is_known else 0), tensors, unused_bytes)


def _data_below(top: Any, limit: TimeLimit) -> tuple[dict[int, Data], bool]:
    """Return the data that an object keeps, by the key of the memory, and whether that is all it keeps."""
    found: dict[int, Data] = {}
    is_known = True
    waiting: deque[Any] = deque([top])
    seen: set[int] = set()
    while waiting and len(seen) < MOST_OBJECTS:
        if len(seen) % CHECK_EVERY == 0:
            limit.check()
        value = waiting.popleft()
        if id(value) in seen or is_exactly(value, *_NUMBERS):
            continue
        seen.add(id(value))
        data = data_of(value)
        if data is not None:
            before = found.get(data.key, replace(data, used_bytes=0))
            found[data.key] = replace(data, used_bytes=min(before.used_bytes + data.used_bytes, data.size_bytes))
        elif not issubclass(type(value), _NOT_FOLLOWED):
            inside = [one for one in _referents(value) if not issubclass(type(one), type)]
            is_known = is_known and (bool(inside) or issubclass(type(value), _KNOWN))
            waiting.extend(inside[-MOST_INSIDE:])
    return found, is_known


def _referents(value: Any) -> list[Any]:
    """Return what an object refers to, without calling its methods, and without what all objects of its kind share.

    Of a large container, these are its last elements: a list of all of them would take long.
    """
    last = last_elements(value, MOST_INSIDE + 1)
    if len(last) > MOST_INSIDE:
        keys = islice(reversed(dict.keys(value)), MOST_INSIDE // 2) if issubclass(type(value), dict) else ()
        return [*last, *keys, *attributes_of(value).values()]
    if type(value) is FunctionType:
        return [*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if type(value) is MethodType:
        return [value.__self__]
    if type(value) is TracebackType:
        return [value.tb_next, *gc.get_referents(value.tb_frame)] if _has_ended(value.tb_frame) else [value.tb_next]
    return gc.get_referents(value)


def _has_ended(frame: FrameType) -> bool:
    """Return whether a frame is not one of those that are running in this thread."""
    running: FrameType | None = sys._getframe(1)
    while running is not None:
        if running is frame:
            return False
        running = running.f_back
    return True


def _of_tensor(tensor: Any) -> Data | None:
    if type(tensor).__torch_dispatch__ is not _NO_DISPATCH:
        return None  # a wrapper, or without data
    try:
        storage = storage_of(tensor)
        address, size, itemsize = storage.data_ptr(), storage.nbytes(), itemsize_of(tensor)
        on_host = device_of(tensor).type == "cpu"
    except (RuntimeError, NotImplementedError):  # without a storage
        return None
    if not address:
        return None
    prefix = _read(address if size >= PREFIX_BYTES else 0) if on_host else None
    return Data(address, size, prefix, is_tensor=True, used_bytes=min(math.prod(known_sizes(tensor)) * itemsize, size))


def _read(address: int) -> bytes:
    return _told(ctypes.string_at(address, PREFIX_BYTES)) if address else b""


def _told(prefix: bytes) -> bytes:
    """Return a prefix, or nothing if it is too short or repeats one value, as zeros, ones and masks do."""
    if len(prefix) < PREFIX_BYTES or prefix[8:] == prefix[:-8]:
        return b""
    return prefix


def _dtype_of(array: Any) -> Any:
    numpy: Any = sys.modules["numpy"]
    return numpy.ndarray.dtype.__get__(array)
