"""Follow operators beside another object that does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from gpuledger.collect.attribution.recorder import FollowsOperators


class Beside(ABC):
    """Follows operators, and shows another object all that it asks for.

    Args:
        beside: The other object.
    """

    def __init__(self, beside: FollowsOperators) -> None:
        self._beside = beside

    @property
    def address_of(self) -> Callable[[Any], int]:
        """Return the function that returns the address of a tensor's storage; 0 if it has none."""
        return self._beside.address_of

    @address_of.setter
    def address_of(self, value: Callable[[Any], int]) -> None:
        self._beside.address_of = value

    @property
    def is_on(self) -> bool:
        """Return whether operators are followed now."""
        return self.follows_itself or self._beside.is_on

    def see(self, operator: Any, results: Any, arguments: Sequence[Any]) -> None:
        """Follow an operator that has ended."""
        if self._beside.is_on:
            self._beside.see(operator, results, arguments)
        if self.follows_itself:
            self.see_itself(operator, results, arguments)

    def forget(self, address: int) -> None:
        """Forget a storage that was freed."""
        self._beside.forget(address)
        self.forget_itself(address)

    @property
    @abstractmethod
    def follows_itself(self) -> bool:
        """Return whether this object itself follows operators now."""

    @abstractmethod
    def see_itself(self, operator: Any, results: Any, arguments: Sequence[Any]) -> None:
        """Follow an operator that has ended."""

    @abstractmethod
    def forget_itself(self, address: int) -> None:
        """Forget a storage that was freed."""
