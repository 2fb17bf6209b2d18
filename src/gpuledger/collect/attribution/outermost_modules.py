"""Outermost modules: which can have calls that are steps, and which names the program has for several of one class."""

from __future__ import annotations

import re
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torch import nn
from torch.nn.parameter import is_lazy

from gpuledger.collect.adapter.other_threads import gradients_of
from gpuledger.collect.adapter.program_objects import (
    SCRIPTED,
    attributes_of,
    bases_of,
    class_name,
    holds_tensors,
    is_leaf,
    is_single_layer,
    kind_name,
    module_of_class,
    modules_below,
    parameters_of,
    updates_of,
    without_overrides,
)

_OBSERVERS = ("torch.ao.quantization.", "torchao.quantization.")
"""Modules of torch whose classes are called while a model is quantized."""

COMPILED = "OptimizedModule"
_WRAPPED_NAMES = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    COMPILED: "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
}
"""Wrapper class with the user's module as its only child -> name of that child. The path of a module has neither."""
_KERAS = "keras."
_KERAS_WEIGHTS = "_torch_params"
"""Child of a layer of Keras, with its weights."""
_GIVEN = re.compile(r"\w[\w-]{,99}")
_SHARED = -1
"""Thread id of a module that several threads have called."""
_SHARDED = "FSDP"
"""What ``fully_shard`` puts before the name of a module's class."""


class OutermostModules:
    """The outermost modules that have weights or buffers, those that compute without any, and those that were freed.

    An observer of quantization is neither: it keeps statistics of the weights of a model.
    """

    def __init__(self) -> None:
        self.freed: set[int] = set()
        """Ids of the outermost modules that were freed."""
        self._with_tensors: set[int] = set()
        self._without: set[int] = set()
        self._threads: dict[int, int] = {}
        """Id of an outermost module -> the thread that has called it."""

    def add(self, top: nn.Module, root_id: int, *, is_outermost: bool) -> None:
        """Add a module. One that is not outermost gives its weights to the outermost module that calls it."""
        if module_of_class(type(top)).startswith(_OBSERVERS):
            return
        if holds_tensors(top):
            self._with_tensors.add(root_id)
        elif is_outermost and not is_single_layer(top):
            self._without.add(root_id)

    def hold_tensors(self, root_id: int) -> bool:
        """Return whether an outermost module had weights or buffers when it was registered."""
        return root_id in self._with_tensors

    def note_called(self, root_id: int) -> None:
        """Record that an outermost module was called in this thread."""
        thread = threading.get_ident()
        if self._threads.setdefault(root_id, thread) != thread:
            self._threads[root_id] = _SHARED

    def are_of_this_thread(self, root_id: int) -> bool:
        """Return whether only the calling thread has called an outermost module."""
        return self._threads.get(root_id) == threading.get_ident()

    def run_in_other_threads(self) -> bool:
        """Return whether a module with weights was called in another thread that goes on, or in several."""
        others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()} | {_SHARED}
        return any(self._threads.get(root_id) in others for root_id in tuple(self._with_tensors))

    def can_take_steps(self, root_id: int) -> bool:
        """Return whether calls of an outermost module can be steps.

        Those of one without weights can if no module with weights exists, as with a loss in a program that has its
        weights in plain tensors. Beside a model, such a module prepares data or measures something.
        """
        return root_id in self._with_tensors or (root_id in self._without and self._with_tensors <= self.freed)


NamesOf = Callable[[Sequence[object]], list[tuple[object, str]]]
"""Returns objects with the names that the program has for them."""

MOST_SEARCHES = 64
"""Maximum number of searches for names. Each takes some ms in a program with many objects."""
MOST_OF_CLASS = 8
"""Maximum number of searches for the modules of one class. A model can call its layers one by one when it is made."""

_LAST_NAME = re.compile(r"(?:^|\.|\[')([A-Za-z_]\w*)(?:'\])?((?:\[\d+\])*)$")
"""The end of a name that is a variable, an attribute or a text in a dictionary, with the numbers of elements in it."""


class RootNames:
    """Names of outermost modules that their class does not tell apart: another module has the same one.

    That can be an outermost module, as with the two parts of a GAN, or a part of one, as with an average of a part.
    Keeps no module alive.

    Args:
        names_of: Returns the names that the program has for objects, and for others in the same containers.
    """

    def __init__(self, names_of: NamesOf) -> None:
        self._names_of = names_of
        self._found: dict[int, tuple[str, ...]] = {}
        """Id of an outermost module -> its variable, or the last two parts of what leads to it."""
        self._by_class: dict[str, list[tuple[weakref.ref[nn.Module], int]]] = defaultdict(list)
        self._members: dict[int, tuple[weakref.ref[object], str]] = {}
        """Names that a search has found for modules that were not added yet, by ``id``."""
        self._searches = Counter[str]()
        self._unnamed: dict[int, str] = {}
        """Id of an outermost module that was searched for and has no name -> its class."""
        self._newest = -1
        self._inside: set[str] = set()
        """Classes of the modules that are parts of outermost ones."""
        self._outermost: dict[int, weakref.ref[nn.Module]] = {}

    def add(self, top: nn.Module, root_id: int) -> None:
        """Add an outermost module."""
        kind, reference = kind_name(top), weakref.ref(top)
        self._newest = root_id
        self._by_class[kind].append((reference, root_id))
        self._outermost[id(top)] = reference
        given = _given_name(top)
        if given is not None:
            self._found[root_id] = (given,)
            return
        alive = self._alive(kind)
        member = self._members.pop(id(top), None)
        if member is not None and member[0]() is top:
            self._set(root_id, member[1])
        elif len(alive) > 1 or kind in self._inside:
            self._search(kind, alive)
        parts = {kind_name(one) for _, _, one in modules_below(top) if not self._is_outermost(one)}
        for new in sorted((parts - self._inside - {kind}) & self._by_class.keys()):
            self._search(new, self._alive(new))
        self._inside |= parts

    def note_called(self, root_id: int) -> None:
        """Search again for a module that had no name: a function that had made it may have returned it since."""
        is_new, self._newest = root_id == self._newest, -1
        kind = None if is_new else self._unnamed.pop(root_id, None)
        if kind is not None:
            self._search(kind, self._alive(kind))

    def _is_outermost(self, module: nn.Module) -> bool:
        known = self._outermost.get(id(module))
        return known is not None and known() is module

    def _alive(self, kind: str) -> list[tuple[nn.Module, int]]:
        """Return the outermost modules of a class that were not freed, with their ids."""
        return [(one, number) for reference, number in self._by_class[kind] if (one := reference()) is not None]

    def _search(self, kind: str, alive: Sequence[tuple[nn.Module, int]]) -> None:
        """Name modules, and keep the names of others that are in the same containers."""
        if not alive or self._searches[kind] >= MOST_OF_CLASS or self._searches.total() >= MOST_SEARCHES:
            return
        self._searches[kind] += 1
        numbers = {id(module): number for module, number in alive}
        self._unnamed.update((number, kind) for _, number in alive if number not in self._found)
        for found, name in self._names_of([module for module, _ in alive]):
            if id(found) in numbers:
                self._set(numbers[id(found)], name)
            elif issubclass(type(found), nn.Module):
                self._members[id(found)] = weakref.ref(found), name

    def names(self) -> dict[int, str]:
        """Return id -> name: the variable, or the last part of what leads to the module; two parts if others have it.

        So the ``model`` of a trainer beside another ``model`` is ``trainer.model``.
        """
        found = self._found.copy()  # other threads can add to it meanwhile
        count = Counter(parts[-1] for parts in found.values())
        return {number: ".".join(parts[-1 if count[parts[-1]] == 1 else -2 :]) for number, parts in found.items()}

    def _set(self, root_id: int, name: str) -> None:
        """Keep the first name that was found for a module, or a later one if it has that in common with another."""
        last = _LAST_NAME.search(name)
        before = None if last is None else _LAST_NAME.search(name[: last.start()])
        known = self._found.get(root_id, ())
        is_shared = any(
            other[-1] == known[-1] for number, other in self._found.copy().items() if known and number != root_id
        )
        if last is not None and (not known or is_shared):
            self._unnamed.pop(root_id, None)
            self._found[root_id] = tuple(one[1] + one[2] for one in (before, last) if one is not None)


def _given_name(module: nn.Module) -> str | None:
    """Return the name of a layer of Keras, as in the summary of its model; None for other modules."""
    if not any(module_of_class(kind).startswith(_KERAS) for kind in bases_of(type(module))):
        return None
    name = attributes_of(module).get("name")
    return name if type(name) is str and _GIVEN.fullmatch(name) else None


def wrapped_name(module: nn.Module) -> str | None:
    """Return the name of the child that a module wraps; None for a module that is no wrapper."""
    return _WRAPPED_NAMES.get(class_name(type(module)).removeprefix(_SHARDED))


def named_modules(top: nn.Module) -> Iterator[tuple[nn.Module | None, str, nn.Module]]:
    """Yield ``(parent, path, module)`` from ``top`` down, with paths that do not include wrapper classes."""
    plain_paths: dict[int, str] = {}
    for parent, name, module in modules_below(top):
        plain = "" if parent is None else plain_paths[id(parent)]
        is_wrapped = parent is not None and name in (wrapped_name(parent), _KERAS_WEIGHTS)
        if parent is not None and name != SCRIPTED and not is_wrapped:
            plain = below_path(plain, name)
        plain_paths[id(module)] = plain
        yield parent, plain, module


def added_later(
    top: nn.Module, path: str, wanted: nn.Module, numbers: Mapping[int, int]
) -> tuple[int, str, nn.Module] | None:
    """Return the module that was added below a registered one after its registration, and is or contains another.

    With it, its parent's id and its path. None if the other module is not below the registered one.

    Args:
        top: The registered module.
        path: Its path.
        wanted: The other module, which is not registered.
        numbers: ``id`` of a registered module -> its id.
    """
    below = {}
    for parent, plain, module in named_modules(top):
        below[id(module)] = parent, plain
    module, (parent, plain) = wanted, below.get(id(wanted), (None, ""))
    while parent is not None and id(parent) not in numbers:
        module, (parent, plain) = parent, below[id(parent)]
    return None if parent is None else (numbers[id(parent)], below_path(path, plain), module)


def versions_of(modules: Iterable[nn.Module]) -> tuple[int, int]:
    """Return the number of parameters, and the sum of their in-place updates: one is that a lazy one gets its shape.

    Tensors that take the place of parameters for one call, as in ``functional_call``, are not counted.
    """
    with without_overrides():
        weights = (weight for module in modules for _, weight in parameters_of(module))
        versions = [updates_of(one) + (not is_lazy(one)) for one in weights if isinstance(one, nn.Parameter)]
    return len(versions), sum(versions)


def have_gradients(modules: Iterable[nn.Module]) -> bool:
    """Return whether a parameter has a gradient; False if another thread could be writing one."""
    with without_overrides():
        weights = [weight for module in modules for _, weight in parameters_of(module) if is_leaf(weight)]
        return any(gradient is not None for gradient in gradients_of(weights) or ())


def below_path(path: str, name: str) -> str:
    """Return the path of what has a name below a path. Either can be empty."""
    return f"{path}.{name}" if path and name else path or name
