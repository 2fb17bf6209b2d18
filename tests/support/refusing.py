"""Classes that say it when any of their code runs, and a database that is not asked twice."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

ran: list[str] = []
"""What of the program's code has run."""


def forbidden(name: str) -> Any:
    def runs(*_: Any, **__: Any) -> Any:
        ran.append(name)
        raise AssertionError(f"{name} was called")

    return runs


ASKED = ("__iter__", "__len__", "__hash__", "__eq__", "__bool__", "__getattr__", "__contains__", "__getitem__")
OF_CONTAINERS = (*ASKED, "__getattribute__", "keys", "values", "items", "get", "__repr__", "__reduce__")


def refusing(base: type, *names: str) -> type:
    """Return a subclass whose methods say that they were called."""
    return type(f"Refusing{base.__name__}", (base,), {name: forbidden(name) for name in names})


def refuse_second_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if a database waits to try again. Threads of earlier tests may wait meanwhile."""
    from gpuledger.ops.database import operator_database

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: pytest.fail("tried again"))
    monkeypatch.setattr(operator_database, "time", clock)
