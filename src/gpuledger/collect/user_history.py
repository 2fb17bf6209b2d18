"""The program's own memory history goes before ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuledger.collect import torch_private
from gpuledger.collect.instrument import Observation, Observer
from gpuledger.collect.torch_entrances import record_memory_history


class UserHistory:
    """Notices when the program starts an allocator history of its own, and lets us end before it begins."""

    def __init__(self, give_way: Callable[[], None]) -> None:
        def enter(*_: Any) -> None:
            if not torch_private.history_is_ours():
                give_way()

        self._observation = Observation(record_memory_history(), Observer(enter))

    def remove(self) -> None:
        """Stop looking."""
        self._observation.remove()
