"""Find the caches that calls without gradients write, where operators are seen.

Keys and values of earlier tokens are in a tensor that each call writes a part of: at the place of its tokens. It does
not matter what holds the tensor. Tensors of ``inference_mode`` are found, too, which count no updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gpuledger.collect.attribution.phases import Phases
from gpuledger.collect.attribution.recorder import FollowsOperators
from gpuledger.collect.attribution.tensor_observations import TensorObservations
from gpuledger.collect.inputs.beside import Beside
from gpuledger.collect.inputs.data_sets import dense_tensors, is_part_of_storage
from gpuledger.model.accounts import Identity, Phase

_PLACES = frozenset({"index", "indices", "mask"})
"""Arguments of an operator that say which elements it writes."""


class WrittenCaches(Beside):
    """Sees operators, and records the tensors that they write a part of, in modules that are called without gradients.

    What a module has allocated itself is recorded, too, and is no cache for this reason: only posting knows it.

    Args:
        observed: Records what tensors are.
        phases: The current phase, and the modules that are running.
        beside: Follows operators, too. It is shown all that it asks for.
    """

    def __init__(self, observed: TensorObservations, phases: Phases, beside: FollowsOperators) -> None:
        super().__init__(beside)
        self._observed, self._phases = observed, phases
        self._writes: dict[Any, tuple[tuple[int, ...], bool]] = {}
        """Operator -> positions of the arguments that it writes, and whether it always writes a part of them."""
        self._seen: set[int] = set()

    @property
    def follows_itself(self) -> bool:
        """Return whether operators are followed now, apart from what the other object asks for."""
        if self._phases.phase != Phase.EVALUATION or torch.is_grad_enabled():
            return False
        state = self._phases.threads
        return len(state.stack) > state.step_depth

    def forget_itself(self, address: int) -> None:
        """Forget a storage that was freed."""
        self._seen.discard(address)

    def see_itself(self, operator: Any, results: Any, arguments: Sequence[Any]) -> None:
        """Follow an operator that has ended."""
        if operator not in self._writes:
            self._writes[operator] = _writes_of(operator)
        positions, writes_parts = self._writes[operator]
        for at in positions:
            for tensor in dense_tensors(arguments[at]) if at < len(arguments) else ():
                address = self.address_of(tensor)
                if not address or address in self._seen or not (writes_parts or is_part_of_storage(tensor)):
                    continue
                self._seen.add(address)
                self._observed.see([(Identity.CACHE, -1, self._phases.threads.innermost[0], tensor)])


def _writes_of(operator: Any) -> tuple[tuple[int, ...], bool]:
    """Return positions of the arguments that an operator writes, and whether it always writes a part of them.

    The operators of a library that write an argument are those that put keys and values into pages.
    """
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return (), False
    written = tuple(
        at
        for at, one in enumerate(schema.arguments)
        if not one.kwarg_only and one.alias_info is not None and one.alias_info.is_write
    )
    is_of_library = not schema.name.startswith("aten::")
    return written, is_of_library or not _PLACES.isdisjoint(one.name for one in schema.arguments)
