"""The program's own memory history goes before ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class UserHistory:
    """Notices when the program starts an allocator history of its own, and lets us end before it begins."""

    def __init__(self, give_way: Callable[[], None]) -> None:
        self._theirs = torch.cuda.memory._record_memory_history

        def _record_memory_history(*args: Any, **kwargs: Any) -> Any:
            give_way()
            return self._theirs(*args, **kwargs)

        self._ours = _record_memory_history
        torch.cuda.memory._record_memory_history = _record_memory_history

    def remove(self) -> None:
        """Put torch's own function back, unless somebody has replaced ours."""
        if torch.cuda.memory._record_memory_history is self._ours:
            torch.cuda.memory._record_memory_history = self._theirs
