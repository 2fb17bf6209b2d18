"""An oracle for backward: which module made the graph node that is running, by autograd's own sequence numbers.

It watches with plain module hooks, which is slow and changes the program: good for a test only.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.modules import ModuleTracker
from gpuledger.collect.attribution.phases import Phases
from gpuledger.collect.attribution.tags import TagTable, module_id_of
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import Part

OUTSIDE = "(outside)"
ADD = torch.ops.aten.add.Tensor
ANY = "(a parameter's gradient: its owner is told by identity)"


class Oracle(TorchDispatchMode):
    """Compares, for every operator that makes a new storage, the tag in force with the module that is truly at work."""

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        self.names = {id(module): name or type(root).__name__ for name, module in root.named_modules()}
        self.tags = TagTable()
        self.registry = ModuleRegistry()
        self.phases = Phases(lambda _token: None, self.tags)
        self.errors: list[BaseException] = []
        nothing = lambda *_: None  # noqa: E731
        self.tracker = ModuleTracker(
            self.phases,
            self.registry,
            on_outermost=nothing,
            on_outermost_end=nothing,
            on_backward_end=nothing,
            guard=Guard(self.errors.append),
        )
        self.owner: dict[int, str] = {}
        self.stack: list[str] = []
        self.starts: list[int] = []
        self.wrong: Counter[tuple[str, str, str]] = Counter()
        self.right_bytes = 0
        self.wrong_bytes = 0
        self._handles: list[Any] = []
        for module in root.modules():
            self._handles.append(module.register_forward_pre_hook(self._enter))
            self._handles.append(module.register_forward_hook(self._leave, always_call=True))

    def _enter(self, module: nn.Module, _args: Any) -> None:
        self._own_up_to_now()
        self.stack.append(self.names[id(module)])

    def _leave(self, _module: nn.Module, _args: Any, _result: Any) -> None:
        self._own_up_to_now()
        self.stack.pop()

    def _own_up_to_now(self) -> None:
        now = int(vars(torch.autograd)["_get_sequence_nr"]())
        node = torch._C._current_autograd_node()
        name = self.stack[-1] if self.stack else OUTSIDE
        if node is not None and not self.stack and "AccumulateGrad" not in node.name():
            name = self.owner.get(node._sequence_nr(), OUTSIDE)  # a node creates nodes: those of its module
        for number in range(self.starts[-1] if self.starts else now, now):
            self.owner[number] = name
        self.starts[:] = [now]

    def __enter__(self) -> Oracle:
        self.starts[:] = [int(vars(torch.autograd)["_get_sequence_nr"]())]
        self.phases.start()
        self.tracker.install()
        return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self.tracker.remove()
        for handle in self._handles:
            handle.remove()
        assert not self.errors, self.errors

    def tagged_module(self) -> str:
        part = Part()
        self.registry.drain(part)
        self._modules = [*getattr(self, "_modules", []), *part.modules]
        module_id = module_id_of(self.phases.threads.token)
        if module_id < 0:
            return OUTSIDE
        return self._modules[module_id]["path"] or self._modules[module_id]["class_name"]

    def true_module(self, func: Any) -> str:
        node = torch._C._current_autograd_node()
        if self.stack:
            return self.stack[-1]
        if node is None or self.phases.phase != Phase.BACKWARD:
            return OUTSIDE
        leads_to = {following.name() for following, _ in node.next_functions if following is not None}
        if "AccumulateGrad" in node.name() or (func is ADD and all("AccumulateGrad" in name for name in leads_to)):
            return ANY
        self._own_up_to_now()
        return self.owner[node._sequence_nr()]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch._C._current_autograd_node() is not None:
            self._own_up_to_now()
        result = func(*args, **(kwargs or {}))
        made = [t for t in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(t, torch.Tensor)]
        inputs = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        size = sum(t.untyped_storage().nbytes() for t in made if t.untyped_storage().data_ptr() not in inputs)
        if size:
            true, tagged = self.true_module(func), self.tagged_module()
            if true in (ANY, tagged):
                self.right_bytes += size
            else:
                self.wrong[(str(func), true, tagged)] += size
                self.wrong_bytes += size
        return result
