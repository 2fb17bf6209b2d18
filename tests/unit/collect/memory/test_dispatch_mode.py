"""The dispatch mode that sees operators, with a recorder that ends while it is told of one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.memory.dispatch_mode import OperatorMode


def test_an_operator_goes_on_if_the_recording_ends_while_its_time_is_added() -> None:
    def end(*_: Any) -> None:
        mode.retire()

    seen: list[Any] = []
    recorder: Any = SimpleNamespace(
        times=SimpleNamespace(add=end),
        see=lambda *operator: seen.append(operator),
        sees_inside=lambda *_: False,
        see_error=lambda _: None,
    )
    mode = OperatorMode(recorder, Guard(lambda _: None))
    with mode:
        assert (torch.ones(2) + 1).tolist() == [2, 2]
    assert seen == []
