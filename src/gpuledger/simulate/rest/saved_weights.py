"""Weights that a program saves with safetensors: zeros in its temporary files, and nothing elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.rest.side_effects import is_temporary


def install_saving(patches: Patches, say: Callable[[str], None]) -> None:
    """Let the program save tensors without data. Their storages show which share memory.

    A file that the program made with ``tempfile`` is written, because the program is about to read it. Any other one
    could replace weights that it needs.
    """
    if find_spec("safetensors") is None:
        return
    module = import_module("safetensors.torch")
    plain_pointer, plain_save, plain_complete = module.storage_ptr, module.save_file, module._is_complete

    def storage_ptr(tensor: torch.Tensor) -> int:
        found: int = tensor.untyped_storage()._cdata if isinstance(tensor, FakeTensor) else plain_pointer(tensor)
        return found

    def is_complete(tensor: torch.Tensor) -> bool:
        if isinstance(tensor, FakeTensor):
            return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        return bool(plain_complete(tensor))

    def save_file(tensors: Mapping[str, Any], filename: Any, *args: Any, **kwargs: Any) -> None:
        if not any(isinstance(tensor, FakeTensor) for tensor in tensors.values()):
            plain_save(tensors, filename, *args, **kwargs)
        elif is_temporary(os.path.abspath(os.fsdecode(filename))):
            names = {dtype: name for name, dtype in module._TYPES.items()}
            metadata = args[0] if args else kwargs.get("metadata")
            _write_zeros(os.fsdecode(filename), tensors, names, metadata or {})
        else:
            say("safetensors: the file was not written, because nothing is computed.")

    for name, function in (("storage_ptr", storage_ptr), ("_is_complete", is_complete), ("save_file", save_file)):
        patches.put(module, name, function)


def _write_zeros(
    path: str, tensors: Mapping[str, torch.Tensor], names: Mapping[torch.dtype, str], metadata: Mapping[str, str]
) -> None:
    """Write a file with the given tensors' names, types and shapes. Its zeros need no space on the disk."""
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
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end_bytes)
