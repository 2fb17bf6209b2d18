"""What a program saves with ``torch.save``: a description of each tensor, from which ``torch.load`` makes a new one.

No file is written by its name: it could be a checkpoint that the program needs. A file that the program has opened for
writing, or made with ``tempfile``, gets the description, because the program is about to read it. So does a new file
that gets what was saved in memory. A file that was not saved here is loaded on the CPU, and its tensors are then moved
to the simulated GPU. Tensors without data can be pickled by other libraries, too.
"""

from __future__ import annotations

import io
import os
import pickle
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.rest.side_effects import is_temporary
from gpuledger.simulate.rest.unwritten import UnwrittenFiles, place_of

_MARK = b"gpuledger: tensors without data\n" + secrets.token_hex(16).encode() + b"\n"
"""Begins a description. No file from elsewhere can have it: reading a description can execute what it contains."""
_SIMULATED = ("gpuledger", "Fake")
"""In errors about objects that a program without gpuledger would not have."""
_open = open
_MOST_ELEMENTS = 4096
"""Largest number of elements of a tensor that is saved with its values, if they are known."""

_Kind = tuple[bool, bool]
_Layout = tuple[int, tuple[int, ...], tuple[int, ...], int]
_Tensor = tuple[int, int, _Kind, torch.dtype, _Layout, str, Any]
"""Describes a tensor: its number and that of its storage in the file; whether it is a parameter, and needs gradients;
type; elements of the storage, sizes, strides and offset; device; values, None if they are not known.
"""


class SavedObjects:
    """Replaces ``torch.save`` and ``torch.load``, and what asks for, moves or removes a file that was saved.

    Args:
        say: Called with sentences about the estimate.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._files = UnwrittenFiles[bytes | None](lambda content: io.BytesIO(content or _MARK), _written)
        self._saved = self._files.contents
        """Absolute path -> description; None if there is none, because of parts of the simulation."""
        self._plain_save: Callable[..., None] = torch.save
        self._load: Callable[..., Any] = torch.load

    def install(self, patches: Patches) -> None:
        """Replace the functions."""
        patches.put(torch, "save", self._save)
        patches.put(torch, "load", self._load_saved)
        patches.put(Path, "write_bytes", self._sparing(Path.write_bytes))
        self._files.install(patches)
        for name in ("remove", "unlink"):
            patches.put(os, name, self._forgetting(getattr(os, name)))
        patches.put(FakeTensor, "__reduce_ex__", _reduced)
        patches.put(FakeTensor, "__copy__", lambda tensor: _of_kind(tensor.detach(), _kind_of(tensor)))

    def _save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(obj, (torch.UntypedStorage, torch.TypedStorage)):  # part of a tensor with data that is pickled
            self._plain_save(obj, f, *args, **kwargs)
            return
        place, content = place_of(f), _described(obj)
        if place is None:
            f.write(content or _MARK)
            return
        self._saved[place] = content
        if is_temporary(place):
            Path(place).write_bytes(content or _MARK)
        else:
            self._say("torch.save: the file was not written, because nothing is computed.")

    def _load_saved(self, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        content = None if (place := place_of(f)) is None else self._saved.get(place) or _written(place)
        if place is None and f.seekable():
            began = f.tell()
            content = f.read() if f.read(len(_MARK)) == _MARK else None
            if content is None:
                f.seek(began)
        if content is not None:
            return _Loader(content.removeprefix(_MARK), map_location).load()
        devices: dict[int, str] = {}

        def keep(storage: Any, saved: str) -> Any:
            devices[storage._cdata] = _device(map_location, saved)
            return storage

        loaded = self._load(f, keep, *args, **kwargs)
        return _moved(loaded, lambda tensor: devices.get(tensor.untyped_storage()._cdata, "cpu"), {})

    def _sparing(self, write: Callable[[Path, bytes], int]) -> Callable[[Path, bytes], int]:
        def write_bytes(path: Path, data: bytes) -> int:
            if bytes(data[: len(_MARK)]) != _MARK or not os.path.lexists(path) or _written(str(path)) is not None:
                return write(path, data)
            self._saved[os.path.abspath(path)] = bytes(data)
            self._say("torch.save: the file was not written, because nothing is computed.")
            return len(data)

        return write_bytes

    def _forgetting(self, remove: Callable[..., None]) -> Callable[..., None]:
        def forget(path: Any, *args: Any, **kwargs: Any) -> None:
            place = place_of(path) or ""
            was_saved = self._saved.pop(place, b"") != b""
            if not was_saved or is_temporary(place):  # another file of this name is of an earlier run: it stays
                remove(path, *args, **kwargs)

        return forget


def _written(place: str) -> bytes | None:
    """Return the description in a file that the program has written itself, after it saved into memory."""
    try:
        with _open(place, "rb") as file:
            return _MARK + file.read() if file.read(len(_MARK)) == _MARK else None
    except OSError:
        return None


def _described(obj: Any) -> bytes | None:
    """Return the description of an object; None if it has parts of the simulation, which cannot be pickled.

    Another object that cannot be pickled raises, as with ``torch.save``.
    """
    file = io.BytesIO(_MARK)
    file.seek(0, io.SEEK_END)
    try:
        _Describer(file).dump(obj)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if any(name in str(error) for name in _SIMULATED):
            return None
        raise
    return file.getvalue()


class _Describer(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        """Tensors and their storages, so that no id is used again."""

    def persistent_id(self, obj: Any) -> _Tensor | None:
        """Return the description of a tensor; None for other objects, which are pickled as usual."""
        if not isinstance(obj, torch.Tensor):
            return None
        storage = obj.untyped_storage()
        self._kept += [obj, storage]
        number = self._numbers.setdefault(id(obj), len(self._numbers))
        of_storage = self._numbers.setdefault(storage._cdata, len(self._numbers))
        is_known = type(obj) is torch.Tensor and obj.device.type == "cpu" and obj.numel() <= _MOST_ELEMENTS
        values = obj.tolist() if is_known else None
        return number, of_storage, _kind_of(obj), obj.dtype, _layout_of(obj), str(obj.device), values


def _layout_of(tensor: torch.Tensor) -> _Layout:
    """Return the elements of a tensor's storage, and its sizes, strides and offset."""
    whole = int(tensor.untyped_storage().nbytes()) // tensor.element_size()
    sizes, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
    return whole, sizes, strides, int(tensor.storage_offset())


def _kind_of(tensor: torch.Tensor) -> _Kind:
    """Return whether a tensor is a parameter, and whether it needs gradients."""
    return isinstance(tensor, torch.nn.Parameter), tensor.requires_grad


def _of_kind(made: torch.Tensor, kind: _Kind) -> torch.Tensor:
    is_parameter, requires_grad = kind
    return torch.nn.Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)


class _LoadedStorage:
    """The storage of tensors that are loaded again. In a pickle, it is what they have in common.

    Args:
        device: The device of the tensors.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._made: dict[torch.dtype, torch.Tensor] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _LoadedStorage, (self._device,)

    def tensor(self, dtype: torch.dtype, layout: _Layout) -> torch.Tensor:
        """Return a new tensor of this storage."""
        whole, sizes, strides, offset = layout
        if dtype not in self._made:
            self._made[dtype] = torch.empty(whole, dtype=dtype, device=self._device)
        return self._made[dtype].as_strided(sizes, strides, offset).detach()


def _reduced(tensor: torch.Tensor, _protocol: Any) -> tuple[Any, ...]:
    """Return how a tensor without data is pickled by others than ``torch.save``."""
    storage: Any = tensor.untyped_storage()
    if not hasattr(storage, "_gpuledger_loaded"):
        storage._gpuledger_loaded = _LoadedStorage(str(tensor.device))
    return _made_again, (storage._gpuledger_loaded, tensor.dtype, _layout_of(tensor), _kind_of(tensor))


def _made_again(storage: _LoadedStorage, dtype: torch.dtype, layout: _Layout, kind: _Kind) -> torch.Tensor:
    return _of_kind(storage.tensor(dtype, layout), kind)


class _Loader(pickle.Unpickler):
    """Reads a description of this process."""

    def __init__(self, content: bytes, map_location: Any) -> None:
        super().__init__(io.BytesIO(content))
        self._map_location = map_location
        self._made: dict[int, torch.Tensor] = {}
        self._storages: dict[int, _LoadedStorage] = {}

    def persistent_load(self, pid: _Tensor) -> torch.Tensor:
        """Return the tensor with a description. Those that shared a storage share one, as tied weights do."""
        number, storage, kind, dtype, layout, device, values = pid
        if number not in self._made:
            where = _device(self._map_location, device)
            if values is None:
                made = self._storages.setdefault(storage, _LoadedStorage(where)).tensor(dtype, layout)
            else:
                made = torch.tensor(values, dtype=dtype, device=where)
            self._made[number] = _of_kind(made, kind)
        return self._made[number]


class _Storage:
    """Stands for a storage on the CPU that a ``map_location`` function gets, which returns the one to use."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def cuda(self, device: int | str | torch.device | None = None, **_how: Any) -> _Storage:
        """Return a storage on a GPU, by default the first one."""
        return _Storage(f"cuda:{device or 0}" if isinstance(device, (int, type(None))) else str(device))

    def cpu(self) -> _Storage:
        """Return a storage on the CPU."""
        return _Storage()


def _device(map_location: Any, saved: str) -> str:
    """Return the device on which a tensor is loaded that was saved from a device."""
    if map_location is None:
        return saved
    if isinstance(map_location, Mapping):
        return str(map_location.get(saved, saved))
    if callable(map_location) and not isinstance(map_location, (str, torch.device)):
        chosen = map_location(_Storage(), saved)
        return saved if chosen is None else str(getattr(chosen, "device", "cpu"))
    return str(map_location)


def _moved(loaded: Any, device_of: Callable[[torch.Tensor], str], known: dict[int, torch.Tensor]) -> Any:
    """Return a loaded object with its tensors on their devices.

    Args:
        loaded: Tensors, modules, and dictionaries, lists and tuples of them.
        device_of: Returns the device of a tensor.
        known: By id, the tensors that were moved.
    """
    if isinstance(loaded, torch.Tensor):
        if device_of(loaded) == "cpu":
            return loaded
        if id(loaded) not in known:
            known[id(loaded)] = _of_kind(loaded.detach().to(device_of(loaded)), _kind_of(loaded))
        return known[id(loaded)]
    if isinstance(loaded, torch.nn.Module):
        for module in loaded.modules():
            _moved(module._parameters, device_of, known)
            _moved(module._buffers, device_of, known)
    elif isinstance(loaded, dict):
        loaded.update({key: _moved(value, device_of, known) for key, value in loaded.items()})
    elif isinstance(loaded, list):
        loaded[:] = [_moved(value, device_of, known) for value in loaded]
    elif type(loaded) is tuple:
        return tuple(_moved(value, device_of, known) for value in loaded)
    return loaded
