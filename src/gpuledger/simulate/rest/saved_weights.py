"""Weights that a program saves with safetensors, and loads again: zeros, in its temporary files or in memory."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, BinaryIO

import torch
from torch._subclasses.fake_tensor import FakeTensor

from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.rest.side_effects import is_temporary
from gpuledger.simulate.rest.unwritten import UnwrittenFiles


class SavedWeights:
    """Lets the program save tensors without data, and load them. Their storages show which share memory.

    A file that the program made with ``tempfile`` is written, because the program is about to read it. Any other one
    could replace weights that it needs. So a file in memory is written for it, which the program finds and reads in
    its place.

    Args:
        say: Called with sentences about the estimate.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._files = UnwrittenFiles[int](_opened)
        self._instead = self._files.contents
        """Absolute path -> descriptor of the file in memory."""

    def install(self, patches: Patches) -> None:
        """Replace safetensors' functions, if it is installed, and what asks for or moves a file that was saved."""
        if find_spec("safetensors") is None:
            return
        module = import_module("safetensors.torch")
        patches.put(module, "storage_ptr", partial(_storage_ptr, module.storage_ptr))
        patches.put(module, "_is_complete", partial(_is_complete, module._is_complete))
        patches.put(module, "save", partial(_save, module.save, module._TYPES))
        patches.put(module, "save_file", partial(self._save_file, module.save_file, module._TYPES))
        for opening in (module, import_module("safetensors")):
            patches.put(opening, "safe_open", partial(self._open, opening.safe_open))
        self._files.install(patches)

    def _save_file(
        self,
        save: Callable[..., None],
        types: Mapping[str, torch.dtype],
        tensors: Mapping[str, torch.Tensor],
        filename: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        place = _absolute(filename)
        if not _have_none(tensors):
            save(tensors, filename, *args, **kwargs)
            self._instead.pop(place, None)
            return
        metadata = args[0] if args else kwargs.get("metadata")
        content = _content(tensors, types, metadata or {})
        if is_temporary(place):
            with open(place, "wb") as file:
                _write(file, *content)
            return
        self._say("safetensors: the file was not written, because nothing is computed.")
        if place not in self._instead or list(self._instead.values()).count(self._instead[place]) > 1:
            self._instead[place] = os.memfd_create("weights")  # a new one if the old one was copied
        with open(self._instead[place], "wb", closefd=False) as file:
            _write(file, *content)

    def _open(self, plain: Callable[..., Any], filename: Any, *args: Any, **kwargs: Any) -> Any:
        opened = self._instead.get(_absolute(filename))
        return plain(filename if opened is None else f"/proc/self/fd/{opened}", *args, **kwargs)


def _have_none(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Return whether some of the tensors have no data."""
    return any(isinstance(tensor, FakeTensor) for tensor in tensors.values())


def _save(
    save: Callable[..., bytes],
    types: Mapping[str, torch.dtype],
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Return the content of a file. Its zeros take no memory until they are written."""
    if not _have_none(tensors):
        return save(tensors, metadata)
    beginning, size_bytes = _content(tensors, types, metadata or {})
    made = bytes(size_bytes)
    # Nobody else has the bytes yet. ``beginning + made`` would write all zeros.
    ctypes.memmove(ctypes.c_char_p(made), beginning, len(beginning))
    return made


def _opened(number: int) -> BinaryIO:
    return os.fdopen(os.open(f"/proc/self/fd/{number}", os.O_RDONLY), "rb")


def _absolute(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))


def _storage_ptr(plain: Callable[[torch.Tensor], int], tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata if isinstance(tensor, FakeTensor) else plain(tensor))


def _is_complete(plain: Callable[[torch.Tensor], bool], tensor: torch.Tensor) -> bool:
    if isinstance(tensor, FakeTensor):
        return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return bool(plain(tensor))


def _content(
    tensors: Mapping[str, torch.Tensor], types: Mapping[str, torch.dtype], metadata: Mapping[str, str]
) -> tuple[bytes, int]:
    """Return the beginning of a file with the given tensors' names, types and shapes, and the size of the file."""
    names = {dtype: name for name, dtype in types.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end_bytes = 0
    for name, tensor in tensors.items():
        start_bytes, end_bytes = end_bytes, end_bytes + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start_bytes, end_bytes],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + end_bytes


def _write(file: BinaryIO, beginning: bytes, size_bytes: int) -> None:
    """Write a file that has zeros after its beginning. They need no space."""
    file.truncate(0)
    file.seek(0)
    file.write(beginning)
    file.truncate(size_bytes)
