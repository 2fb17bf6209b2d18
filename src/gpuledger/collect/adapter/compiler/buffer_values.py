"""Which node of a captured graph makes each buffer of cached forward code.

A call of a library computes one node, which its comment names. What it reads are the values of that node's arguments.
A fused kernel computes the nodes between its inputs and its outputs. So a buffer is known by the kernels that read it,
and where these are not enough to tell, it stays unknown. A copy in the layout or the type that a library wants, as
under autocast, belongs to the node that reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpuledger.collect.adapter.compiler.generated_code import Statement
from gpuledger.collect.adapter.compiler.graph_nodes import CapturedGraph, TensorKind

EXTERN = ("extern_kernels.", "torch.ops.", "aten.")
"""Beginnings of the names of kernels that compute one operation of a library."""


@dataclass(frozen=True)
class _Call:
    """One launch: its kernel, the node that it computes if it is a library's, what it reads, and its outputs."""

    kernel: str
    node: str
    reads: frozenset[str]
    inputs: frozenset[str]
    outputs: tuple[str, ...]


class BufferValues(NamedTuple):
    """Buffers of forward code.

    Attributes:
        nodes: Buffer -> the node that it is the value of, or a copy for.
        computed: Buffer -> the node that its kernel computes for it; "" for a copy of an input.
    """

    nodes: dict[str, str]
    computed: dict[str, str]


def find_values(
    statements: Iterable[Statement],
    nodes: Mapping[int, str],
    captured: CapturedGraph,
    input_of: Callable[[str], str],
    kinds: Mapping[str, TensorKind],
) -> BufferValues:
    """Return the buffers for which the kernels' inputs and outputs leave only one node.

    Args:
        statements: Those of the forward function, in order.
        nodes: Line of a library's call -> the node that it computes.
        captured: The graph that Dynamo captured.
        input_of: Returns the name of the graph's input that a variable of the code is; "" for none.
        kinds: Buffer that is allocated -> its number of elements and type.
    """
    statements = list(statements)
    calls = _calls_of(statements, nodes, input_of)
    search = _Search(captured, calls, frozenset(nodes.values()), _with_renamed(kinds, statements))
    while search.infer_all():
        pass
    values = {name: node for name, node in search.values.items() if node not in captured.inputs}
    computed = {name: search.copied.get(name, "") for name in search.copies}
    return BufferValues(values | search.copies, values | computed)


def _with_renamed(kinds: Mapping[str, TensorKind], statements: Iterable[Statement]) -> dict[str, TensorKind]:
    """Return the kinds of buffers under their later names as well: only memory of one size is used again."""
    found = dict(kinds)
    for one in statements:
        if one.renames is not None and one.renames[0] in found:
            found[one.renames[1]] = found[one.renames[0]]
    return found


def _calls_of(statements: Iterable[Statement], nodes: Mapping[int, str], input_of: Callable[[str], str]) -> list[_Call]:
    """Return the kernels. A buffer that is written in place has its new name as output, and the old one is read."""
    once = {node for node, count in Counter(nodes.values()).items() if count == 1}
    before: dict[str, str] = {}
    there: set[str] = set()
    found = []
    for one in statements:
        if one.renames is not None:
            old, new = one.renames
            if old in there:  # else nothing was written yet
                before[new] = old
        if one.assigns:
            there.add(one.assigns)
        if not one.kernel:
            continue
        buffers = [name for name in dict.fromkeys(one.names) if name.startswith("buf")]
        outputs = tuple(name for name in buffers if name not in there)
        reads = {name for name in buffers if name in there} | {before[name] for name in outputs if name in before}
        inputs = {input_of(name) for name in one.names} - {""}
        node = nodes.get(one.line, "")
        found.append(_Call(one.kernel, node if node in once else "", frozenset(reads), frozenset(inputs), outputs))
        there.update(outputs)
    return found


class _Search:
    """Looks for the value of one buffer at a time.

    Args:
        captured: The graph.
        calls: Its kernels, in order.
        of_library: Nodes that calls of a library compute.
        kinds: Buffer -> its number of elements and type, as far as known.

    Attributes:
        values: Buffer -> node, as far as known.
        copies: Copy in another layout or type -> the node that reads it.
        copied: Copy of a value -> the node of that value.
    """

    def __init__(
        self,
        captured: CapturedGraph,
        calls: list[_Call],
        of_library: frozenset[str],
        kinds: Mapping[str, TensorKind],
    ) -> None:
        self.values = {call.outputs[0]: call.node for call in calls if call.node and len(call.outputs) == 1}
        self.copies: dict[str, str] = {}
        self.copied: dict[str, str] = {}
        self._kinds, self._kinds_of_nodes = kinds, captured.kinds
        self._inputs = captured.inputs.keys()
        self._elsewhere = of_library | self._inputs
        self._order = {name: number for number, name in enumerate(captured.users)}
        self._arguments: dict[str, set[str]] = {name: set() for name in captured.users}
        for name, users in captured.users.items():
            for user in users:
                self._arguments.setdefault(user, set()).add(name)
        self._calls = calls
        self._makers = {name: call for call in calls for name in call.outputs}
        self._known = set(self.values.values())
        self._alike: dict[str, list[_Call]] = {}
        for call in calls:
            self._alike.setdefault(call.kernel, []).append(call)

    def infer_all(self) -> bool:
        """Look at every kernel once. Return whether something was found."""
        found = False
        for call in self._calls:
            found = self._infer_read(call) or self._infer_alike(call) or found
        return found

    def _found(self, buffer: str, node: str) -> bool:
        self.values[buffer] = node
        self._known.add(node)
        return True

    def _infer_read(self, call: _Call) -> bool:
        """Find the value of the only unknown buffer that a kernel reads."""
        unknown = {name for name in call.reads if name not in self.values and name not in self.copies}
        if not unknown:
            return False
        read = {self.values[name] for name in call.reads if name in self.values} | call.inputs
        computed = {call.node} if call.node else self._computed(call, read)
        needed = set().union(*(self._arguments[node] for node in computed)) - computed - read
        needed = {node for node in needed if self._arguments[node] or node in self._inputs}
        inputs = needed & self._inputs
        if call.node and self._infer_casts(call, unknown, needed):
            return True
        if call.node and inputs and len(unknown) == len(needed):
            return self._infer_copies(call, unknown, inputs)
        if len(unknown) != 1 or len(needed) != 1 or inputs or not needed.isdisjoint(self._known):
            return False
        (node,) = needed
        return (bool(call.node) or not self._is_computable(node, read)) and self._found(unknown.pop(), node)

    def _infer_copies(self, call: _Call, unknown: set[str], inputs: set[str]) -> bool:
        """Find which of the unknown buffers are copies of inputs: those of kernels that read such an input."""
        copies = {name for name in unknown if name in self._makers and not inputs.isdisjoint(self._makers[name].inputs)}
        if len(copies) != len(inputs):
            return False
        self.copies.update(dict.fromkeys(copies, call.node))
        if len(copies) == 1:
            self.values[copies.pop()] = inputs.pop()
        return True

    def _infer_casts(self, call: _Call, unknown: set[str], needed: set[str]) -> bool:
        """Find which of the unknown buffers have another type than every argument of their size: they are copies."""
        found: dict[str, set[str]] = {}
        for name in unknown & self._kinds.keys():
            kind = self._kinds[name]
            alike = {node for node in needed if node in self._kinds_of_nodes}
            alike = {node for node in alike if self._kinds_of_nodes[node].elements == kind.elements}
            if alike and all(self._kinds_of_nodes[node].type_name != kind.type_name for node in alike):
                found[name] = alike
            elif len(same := {node for node in alike if self._kinds_of_nodes[node] == kind}) == 1:
                is_only = [other for other in unknown if self._kinds.get(other) == kind] == [name]
                if is_only and same.isdisjoint(self._inputs | self._known):
                    return self._found(name, same.pop())
        self.copies.update(dict.fromkeys(found, call.node))
        for name, alike in found.items():
            computed = alike - self._inputs
            others = [other for other in found if other != name and not found[other].isdisjoint(computed)]
            makers = {id(self._makers[one]) for one in (name, *others) if one in self._makers}
            if len(computed) == 1 and len(makers) == 1:  # whichever of them is the copy, one kernel computes it
                self.copied[name] = next(iter(computed))
        return bool(found)

    def _infer_alike(self, call: _Call) -> bool:
        """Find the value of an output that is the argument of another one, where the same kernel runs elsewhere."""
        for other in self._alike[call.kernel] if not call.node else ():
            if other is call or len(other.outputs) != len(call.outputs):
                continue
            both = list(zip(call.outputs, other.outputs, strict=True))
            for own, theirs in both:
                if own in self.values or theirs not in self.values:
                    continue
                for later, their_later in both:
                    argument = self._only_argument(self.values.get(later, ""))
                    their_argument = self._only_argument(self.values.get(their_later, ""))
                    if argument not in self._known | {""} and their_argument == self.values[theirs]:
                        return self._found(own, argument)
        return False

    def _only_argument(self, node: str) -> str:
        """Return the only node that a node uses, apart from inputs of the graph; "" if there are others."""
        found = self._arguments.get(node, set()) - self._inputs
        return found.pop() if len(found) == 1 else ""

    def _computed(self, call: _Call, read: set[str]) -> set[str]:
        """Return the nodes that a fused kernel computes: its outputs, and what is between these and what it reads."""
        outputs = {self.values[name] for name in call.outputs if name in self.values}
        outputs |= {self.copied[name] for name in call.outputs if name in self.copied}
        above, waiting = set(outputs), list(outputs)
        while waiting:
            found = self._arguments[waiting.pop()] - read - above - self._elsewhere
            above |= found
            waiting += found
        between: set[str] = set()
        for node in sorted(above, key=self._order.__getitem__):
            if not self._arguments[node].isdisjoint(between | (read - self._inputs)):
                between.add(node)
        return outputs | between

    def _is_computable(self, node: str, read: set[str]) -> bool:
        """Return whether a kernel could compute a node from one more buffer: then that one may be the unknown one."""
        lacks, before = self._look_before(node, read, "")
        return not lacks or not all(self._look_before(node, read, given)[0] for given in before)

    def _look_before(self, node: str, read: set[str], given: str) -> tuple[bool, set[str]]:
        """Return whether a node needs what a fused kernel cannot compute from what it reads and one given node.

        The second value are the nodes that it is computed from.
        """
        seen: set[str] = set()
        waiting, lacks = [node], False
        while waiting:
            found = self._arguments[waiting.pop()] - read - seen - {given}
            seen |= found
            lacks = lacks or not found.isdisjoint(self._elsewhere)
            waiting += found - self._elsewhere
        return lacks, seen
