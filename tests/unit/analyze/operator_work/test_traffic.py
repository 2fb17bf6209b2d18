"""The bytes that operators write, as far as their arguments tell."""

from __future__ import annotations

import pytest

from gpuledger.analyze.operator_work.formulas import work_of
from gpuledger.operator_key import OperatorKey


@pytest.mark.parametrize("name", ["add_.Tensor", "relu_.default", "clone.default", "constant_pad_nd.default"])
def test_an_operator_without_tensors_moves_nothing(name: str) -> None:
    work = work_of(OperatorKey(f"aten.{name}", (1.0,)))
    assert (work.read_bytes, work.written_bytes) == (0, 0)
