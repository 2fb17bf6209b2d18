"""A library is observed once it is imported whole."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from gpuledger.collect.sharding.library_observer import LibraryObserver

NAME = "a_library_of_sharded_training"


class Observer(LibraryObserver):
    module, unsupported = NAME, "this version is not supported: {}"

    def __init__(self, notes: list[str]) -> None:
        self.given_up = notes
        self.seen: list[object] = []
        super().__init__(None, None)  # type: ignore[arg-type]  # neither is used

    def observe(self) -> None:
        self.seen.append(sys.modules[NAME].Group)

    def give_up(self, note: str) -> None:
        self.given_up.append(note)


def test_a_library_that_another_thread_is_importing_is_observed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = ModuleType(NAME)
    library.__spec__ = ModuleSpec(NAME, None)
    library.__spec__._initializing = True
    monkeypatch.setitem(sys.modules, NAME, library)
    notes: list[str] = []
    observer = Observer(notes)
    observer.install()
    assert (observer.seen, notes) == ([], [])
    library.Group, library.__spec__._initializing = object(), False
    observer.install()
    assert observer.seen == [library.Group]


def test_a_library_without_its_class_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType(NAME)
    monkeypatch.setitem(sys.modules, NAME, library)
    notes: list[str] = []
    Observer(notes).install()
    assert notes == [f"this version is not supported: module '{NAME}' has no attribute 'Group'"]
