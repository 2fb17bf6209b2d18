"""The module registry: assigns an id to every module, and stores the names of its parameters and buffers."""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from math import prod
from typing import Any

from torch import nn
from torch.optim import Optimizer

from gpuledger.collect.adapter.held_tensors import IN_GROUPS, HeldTensor, KeyedReference
from gpuledger.collect.adapter.other_threads import Exclusive, take_all
from gpuledger.collect.adapter.program_objects import (
    attributes_of,
    buffers_of,
    children_of,
    class_name,
    kind_name,
    known_sizes,
    parameter_groups,
    parameters_of,
    requires_grad,
    without_overrides,
)
from gpuledger.collect.attribution.live_objects import LiveObjects, unregistered_of
from gpuledger.collect.attribution.outermost_modules import (
    COMPILED,
    NamesOf,
    OutermostModules,
    RootNames,
    added_later,
    below_path,
    named_modules,
    versions_of,
    wrapped_name,
)
from gpuledger.collect.attribution.roster.places import ModuleClasses, ModulePlaces
from gpuledger.collect.attribution.roster.wrappers import PassingWrappers
from gpuledger.collect.attribution.tags import NameTable
from gpuledger.model.journal.journal import Part

SCOPES = -2
"""Root id of scope names, in the place of an outermost module's id."""

MOST_STRANGERS = 4
"""Modules of one class that are in no model, after which none that the same module calls is searched for in one."""


class ModuleRegistry:
    """Assigns ids to modules by identity. Keeps none of them alive.

    ``module_ids`` maps ``id(module)`` to the module's id. An entry is removed when its module is freed, because a new
    module can get the same address. ``parameters`` and ``buffers`` list ``(held tensor, name_id, module_id)``, tied
    ones once. Name ids are per outermost module: two models can each have a ``0.weight``.

    The weak references' callback is a C function (``deque.append``), and the removal happens later. In a callback
    written in Python, a signal handler of the program could run, and its exception would be lost.

    Args:
        names_of: Returns the names that the program has for objects, and for others in the same containers.
    """

    def __init__(self, names_of: NamesOf = lambda _: []) -> None:
        self.module_ids: dict[int, int] = {}
        self.parameters: list[tuple[HeldTensor, int, int]] = []
        self.buffers: list[tuple[HeldTensor, int, int]] = []
        self.called_roots: set[int] = set()
        self.classes = ModuleClasses()
        self.has_compiled = False
        self.gone: deque[KeyedReference] = deque()
        """Freed modules that are still in ``module_ids``; :meth:`forget_gone` removes them."""
        self._refs: dict[int, KeyedReference] = {}
        self._known_tensors: dict[int, HeldTensor] = {}
        self._holders: list[weakref.ref[nn.Module]] = []
        self._names = NameTable()
        self._new_modules: deque[dict[str, Any]] = deque()
        self._turn = Exclusive()
        self._count = 0
        self._places = ModulePlaces()
        self._wrapped: dict[int, int] = {}
        self._passing: dict[tuple[int, str], int] = {}
        self._strangers = Counter[tuple[int, str]]()
        self._outermost = OutermostModules()
        self._with_sequence_first: set[int] = set()
        self._root_names = RootNames(names_of)
        self._containers: dict[int, int] = {}
        self.on_added: Callable[[nn.Module, int], None] = lambda *_: None
        self._contained: dict[int, list[int | str]] = {}
        self._wrappers = PassingWrappers(self._places, self.classes, self._outermost.freed, self._contained)
        self._wrappers.on_model = self._root_names.add

    def name_id(self, name: str, root_id: int = -1) -> int:
        """Return the id of a name below an outermost module. Assigns one on first use."""
        return self._names.number(name, root_id)

    def note_called(self, module_id: int) -> None:
        """Record that a module was called as an outermost module, in this thread."""
        root_id = self._places[module_id][1]
        self.called_roots.add(root_id)
        self._outermost.note_called(root_id)
        self._root_names.note_called(root_id)

    def note_called_inside(self, module_id: int) -> None:
        """Record that a module runs as a part of compiled code, without a call."""
        self.called_roots.add(self._places[module_id][1])

    def is_of_this_thread(self, module_id: int) -> bool:
        """Return whether only the calling thread has called a module. No other thread writes its gradients then."""
        return module_id >= 0 and self._outermost.are_of_this_thread(self._places[module_id][1])

    def runs_in_other_threads(self) -> bool:
        """Return whether an outermost module with weights was called in another thread that goes on, or in several."""
        return self._outermost.run_in_other_threads()

    def holds_tensors(self, module_id: int) -> bool:
        """Return whether a module's outermost module had weights or buffers when it was registered."""
        return self._outermost.hold_tensors(self._places[module_id][1])

    def may_have_sequence_first(self, module_id: int) -> bool:
        """Return whether a layer of a module's outermost module has the batch in its second dimension."""
        return self._places[module_id][1] in self._with_sequence_first

    def can_take_steps(self, module_id: int) -> bool:
        """Return whether calls of an outermost module can be steps, as far as modules are known."""
        self.forget_gone()
        return self._outermost.can_take_steps(self._places[module_id][1])

    def is_gone(self, module_id: int) -> bool:
        """Return whether an outermost module was freed."""
        self.forget_gone()
        return module_id in self._outermost.freed

    def gives_way(self, module_id: int) -> bool:
        """Return whether calls of an outermost module are no longer steps: it was freed, or another one has weights."""
        return self.is_gone(module_id) or not self.can_take_steps(module_id)

    def container_of(self, module_id: int) -> int:
        """Return the outermost module that was found later to contain a registered one; -1 if there is none."""
        return self._containers.get(module_id, -1)

    def awaits_first_call(self) -> bool:
        """Return whether an outermost module was not called yet that has trainable parameters in training mode."""
        for root_id, module in self._holders_by_root():
            if root_id in self.called_roots or not attributes_of(module).get("training"):
                continue
            with without_overrides():
                if any(requires_grad(weight) for _, weight in parameters_of(module)):
                    return True
        return False

    def parameters_beside(self, module_id: int) -> set[int]:
        """Return the ids of the parameters of the outermost module that a module is in."""
        mine = self._places[module_id][1]
        held = (module for root_id, module in self._holders_by_root() if root_id == mine)
        return {id(weight) for module in held for _, weight in parameters_of(module)}

    def larger_than(self, module_id: int) -> set[int]:
        """Return the ids of the outermost modules with more elements in parameters than the one of a module."""
        elements = Counter[int]()
        with without_overrides():
            for root_id, module in self._holders_by_root():
                elements[root_id] += sum(prod(known_sizes(weight)) for _, weight in parameters_of(module))
        return {root_id for root_id, count in elements.items() if count > elements[self._places[module_id][1]]}

    def is_in(self, module_id: int, root_ids: Collection[int]) -> bool:
        """Return whether the outermost module of a module is one of these."""
        return self._places[module_id][1] in root_ids

    def _holders_by_root(self) -> Iterator[tuple[int, nn.Module]]:
        """Yield the live modules with parameters, after the id of the outermost module of each."""
        for module in (reference() for reference in self._holders):
            number = -1 if module is None else self.module_ids.get(id(module), -1)
            if module is not None and number >= 0:
                yield self._places[number][1], module

    def paths(self) -> list[str]:
        """Return the paths of all registered modules below their outermost modules."""
        return [path for path, _ in self._places if path]

    def path_of(self, module_id: int) -> str:
        """Return a module's path below its outermost module."""
        return self._places[module_id][0]

    def below(self, module_id: int, path: str) -> int:
        """Return the id of the module at ``path`` below another module; -1 if there is none."""
        above, root_id = self._places[module_id]
        found = self._places.at(below_path(above, path), root_id)
        return self.below(self._wrapped[module_id], path) if found < 0 and module_id in self._wrapped else found

    def above(self, module_id: int, path: str) -> int:
        """Return the id of the module below which another one has ``path``; -1 if there is none."""
        own, root_id = self._places[module_id]
        return self._places.at(own[: -len(path)].rstrip("."), root_id) if f".{own}".endswith(f".{path}") else -1

    def around(self, module_ids: Collection[int]) -> int:
        """Return the id of the innermost module that contains all of some modules; -1 if no module does."""
        return self._places.around(module_ids)

    def is_below(self, module_id: int, other_id: int) -> bool:
        """Return whether a module is inside another one, by their paths."""
        (path, root_id), (above, other_root_id) = self._places[module_id], self._places[other_id]
        return root_id == other_root_id and (not above or path == above or path.startswith(f"{above}."))

    def named(self, module: nn.Module, name: str) -> tuple[int, int]:
        """Return the ids of the name of a module's tensor and of the module; -1 for both if it is not registered."""
        number = self.module_ids.get(id(module), -1)
        if number < 0:
            return -1, -1
        path, root_id = self._places[number]
        return self.name_id(below_path(path, name), root_id), number

    def register(self, module: nn.Module, *, inside: int = -1) -> int:
        """Return a module's id. Registers the module and all its descendants on first use.

        Args:
            module: An outermost module, or one called inside another module that does not have it as a child (for
                example a loss that is created in each forward). The latter are registered under the class name, below
                the module that calls them, with one id per class.
            inside: Id of the module that calls it; -1 for an outermost module.
        """
        with self._turn:
            self.forget_gone()
            known = self.module_ids.get(id(module))
            return self._register(module, inside) if known is None else known

    def _register(self, module: nn.Module, inside: int) -> int:
        bare = not (parameters_of(module) or buffers_of(module) or children_of(module))
        key = (inside, kind_name(module))
        if bare and key in self._passing:
            return self._point(module, self._passing[key])
        wrapper = self._wrappers.wrapper_of(module, inside, self.module_ids)
        left = [] if wrapper is None else self._wrappers.take_over(wrapper, module, self.module_ids)
        for one, number in left:
            self.on_added(one, self._point(one, number))
        if left:
            return left[0][1]
        late = self._added_later(module, key) if inside >= 0 else None
        if late is not None:
            above, path, top = late
            self._add_tree(top, above, path)
            return self.module_ids[id(module)]
        number = self._add_tree(module, inside)
        if bare:
            self._passing[key] = number
        elif wrapper is not None:
            self._wrappers.keep(wrapper, module, [*range(number, self._count)])
        return number

    def _added_later(self, module: nn.Module, key: tuple[int, str]) -> tuple[int, str, nn.Module] | None:
        """Return the place of a module that was added to the one that calls it, or around that, since registration."""
        searched = (key[0], self._places[key[0]][1]) if self._strangers[key] < MOST_STRANGERS else ()
        for number in dict.fromkeys(searched):
            alive = (one() for at, one in self._refs.copy().items() if self.module_ids.get(at) == number)
            top = next((one for one in alive if one is not None), None)
            found = None if top is None else added_later(top, self._places[number][0], module, self.module_ids)
            if found is not None:
                return found
        self._strangers[key] += 1
        return None

    def _add_tree(self, top: nn.Module, inside: int, path: str = "") -> int:
        """Register ``top``, whose path can be given, its descendants, and their parameters and buffers."""
        first = self._count
        root_id = self._places[inside][1] if inside >= 0 else first
        prefix = path or (f"{self._places[inside][0]}.{kind_name(top)}".lstrip(".") if inside >= 0 else "")
        found = list(named_modules(top))
        has_own = any(parameters_of(module) for _, _, module in found if id(module) not in self.module_ids)
        for parent, plain, module in found:
            known = self.module_ids.get(id(module))
            if known is not None:
                self._containers[known] = root_id
                place = self._places[known]
                is_left = has_own and place[1] != root_id and place[1] in self._outermost.freed
                if parent is not None and (place == ("", known) or is_left):
                    above = self.module_ids[id(parent)]
                    self._contained.setdefault(known, [known, root_id, above, below_path(prefix, plain)])
            else:
                above = inside if parent is None else self.module_ids[id(parent)]
                self._add(module, below_path(prefix, plain), above, root_id)
        for _, plain, module in found:
            self._add_tensors(below_path(prefix, plain), module, root_id)
            self.on_added(module, self.module_ids[id(module)])
        self._outermost.add(top, root_id, is_outermost=inside < 0)
        if inside < 0:
            self._root_names.add(top, root_id)
        return first

    def _add(self, module: nn.Module, path: str, parent: int, root_id: int) -> int:
        number, self._count = self._count, self._count + 1
        self._places.append((path, root_id))
        kind = self.classes.add(module)  # before others can find the module by its id
        self._point(module, number)
        if attributes_of(module).get("batch_first") is False:
            self._with_sequence_first.add(root_id)
        wrapped = wrapped_name(module)
        for name, inner in children_of(module) if wrapped else ():
            if name == wrapped and id(inner) in self.module_ids:  # a model with a path of its own
                self._wrapped[number] = self.module_ids[id(inner)]
        compiled = class_name(type(module)) == COMPILED or attributes_of(module).get("_compiled_call_impl") is not None
        self.has_compiled |= compiled
        self._new_modules.append(
            {
                "path": path,
                "class_name": kind,
                "parent": parent,
                "root": root_id,
                "parameters": len(parameters_of(module)),
                "compiled": compiled,
                **({"wraps": self._wrapped[number]} if number in self._wrapped else {}),
            }
        )
        return number

    def _point(self, module: nn.Module, number: int) -> int:
        key = id(module)
        self.module_ids[key] = number
        reference = self._refs[key] = KeyedReference(module, self.gone.append)
        reference.key = key
        return number

    def forget_gone(self) -> None:
        """Remove the modules that were freed, because a new module can get the address of an old one."""
        if not self.gone:
            return
        with self._turn:
            while self.gone:
                reference = self.gone.popleft()
                if self._refs.get(reference.key) is reference:
                    number = self.module_ids.pop(reference.key)
                    del self._refs[reference.key]
                    if self._places[number][1] == number:
                        self._outermost.freed.add(number)

    def _add_tensors(self, path: str, module: nn.Module, root_id: int) -> None:
        owner = self.module_ids[id(module)]
        own = ((self.parameters, "_parameters", parameters_of), (self.buffers, "_buffers", buffers_of))
        for kept, kind, held_by in own:
            for name, tensor in held_by(module):
                if self.is_known(tensor):
                    continue
                held = self._known_tensors[id(tensor)] = HeldTensor(module, kind, name)
                kept.append((held, self.name_id(below_path(path, name), root_id), owner))
        if parameters_of(module):
            self._holders.append(weakref.ref(module))

    def add_loose_parameters(self, optimizer: Optimizer, names: dict[int, str], owned: Collection[int] = ()) -> None:
        """Add the tensors that an optimizer updates and no module owns; ``names`` and ``owned`` by ``id``."""
        groups = enumerate(parameter_groups(optimizer))
        with self._turn:
            for number, place, tensor in ((number, *one) for number, group in groups for one in enumerate(group)):
                if not (self.is_known(tensor) or id(tensor) in owned):
                    held = self._known_tensors[id(tensor)] = HeldTensor(optimizer, IN_GROUPS, (number, place))
                    name = names.get(id(tensor), f"{IN_GROUPS}.{number}.{place}")
                    self.parameters.append((held, self.name_id(name), -1))

    def is_known(self, tensor: Any) -> bool:
        """Return whether a tensor is a registered parameter or buffer."""
        known = self._known_tensors.get(id(tensor))
        return known is not None and known() is tensor

    def register_alive(self, living: LiveObjects) -> list[Optimizer]:
        """Register every live module with parameters or buffers that is not registered yet (an EMA copy, a teacher).

        Returns:
            The live optimizers.
        """
        modules = living.modules()
        self.forget_gone()
        for module in unregistered_of(modules, self.module_ids):
            self.register(module)
        return [thing for thing in modules if issubclass(type(thing), Optimizer)]

    def weights_version(self) -> tuple[int, int]:
        """Return the number of parameters, and a number that changes with every in-place update of one of them.

        The second number also changes if the first does, because a new parameter has been filled in place.
        """
        return versions_of(module for reference in self._holders if (module := reference()) is not None)

    def live_modules(self) -> list[nn.Module]:
        """Return the registered modules that were not freed."""
        return [module for reference in list(self._refs.values()) if (module := reference()) is not None]

    def drain(self, part: Part) -> None:
        """Write the entries added since the last drain into ``part``."""
        self._names.drain(part)
        part.modules += take_all(self._new_modules)
        part.facts["called_roots"] = sorted(self.called_roots)
        if self._wrappers.models:
            part.facts["wrapped_models"] = list(self._wrappers.models.copy().items())
        if self._contained:
            part.facts["contained_roots"] = list(self._contained.values())
        classes = self.classes.changed(self.module_ids, self._refs)
        if classes:
            part.facts["module_classes"] = classes
        if root_names := self._root_names.names():
            part.facts["root_names"] = list(root_names.items())
