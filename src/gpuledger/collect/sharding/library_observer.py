"""The common part of the observers of sharded training: when they begin, and what happens if they cannot."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import ClassVar

from gpuledger.collect.adapter.instrument import CannotInstrumentError
from gpuledger.collect.sharding.marked_calls import MarkedCalls, ShardingContext


class LibraryObserver(ABC):
    """Observes one library of sharded training, between :meth:`install` and :meth:`remove`. Imports nothing.

    Attributes:
        module: Module of the library that a program has imported if it uses the library.
        unsupported: Note for the user on a version that cannot be observed, with a place for the reason.
    """

    module: ClassVar[str]
    unsupported: ClassVar[str]

    def __init__(self, context: ShardingContext, calls: MarkedCalls) -> None:
        self._context = context
        self._calls = calls
        self._has_begun = False

    def install(self) -> None:
        """Observe the library if the program has imported it and it is not observed yet."""
        imported = sys.modules.get(self.module)
        is_being_imported = getattr(getattr(imported, "__spec__", None), "_initializing", False)  # by another thread
        if self._has_begun or imported is None or is_being_imported:
            return
        self._has_begun = True
        try:
            self.observe()
        except (AttributeError, KeyError, CannotInstrumentError) as error:
            self.give_up(self.unsupported.format(error))

    def remove(self) -> None:
        """Stop observing."""
        self._calls.remove()

    @abstractmethod
    def observe(self) -> None:
        """Observe the library's functions.

        Raises:
            AttributeError: a function is missing from this version of the library.
            KeyError: a module is missing from it.
            CannotInstrumentError: a function cannot be observed.
        """

    def give_up(self, note: str) -> None:
        """Give up after a function could not be observed."""
        self._context.note(note)
        self.remove()
