"""A shortcut to a fake result leads to what torch's own way leads to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gpuledger.simulate.gpu.shortcuts import _VIEWS, shortcut

aten = torch.ops.aten
ARGUMENTS: dict[Any, tuple[Any, ...]] = {
    aten._unsafe_view.default: ([6, 4],),
    aten.alias.default: (),
    aten.detach.default: (),
    aten.expand.default: ([5, 4, 6],),
    aten.permute.default: ([1, 0],),
    aten.select.int: (1, 3),
    aten.slice.Tensor: (1, 1, 5, 2),
    aten.t.default: (),
    aten.transpose.int: (0, 1),
    aten.unsqueeze.default: (-1,),
    aten.view.default: ([-1],),
}


@pytest.mark.parametrize("func", sorted(_VIEWS, key=str), ids=str)
def test_a_view_is_torchs_own(func: Any) -> None:
    mode = FakeTensorMode()
    with mode:
        tensor = torch.empty(7, 6, dtype=torch.bfloat16)[1:5]
        expected = func(tensor, *ARGUMENTS[func])
    found = shortcut(mode, func, (tensor, *ARGUMENTS[func]), {})
    assert type(found) is type(expected)
    assert found.fake_device == expected.fake_device
    for told in ("shape", "dtype", "requires_grad"):
        assert getattr(found, told) == getattr(expected, told)
    assert (found.stride(), found.storage_offset()) == (expected.stride(), expected.storage_offset())
    assert found.untyped_storage()._cdata == tensor.untyped_storage()._cdata


def test_what_cannot_be_viewed_is_refused_as_by_torch() -> None:
    mode = FakeTensorMode()
    with mode:
        tensor = torch.empty(4, 6)
    with pytest.raises(RuntimeError, match="invalid for input of size 24"):
        shortcut(mode, aten.view.default, (tensor, [5, 5]), {})


def test_a_tensor_whose_value_is_known_goes_torchs_way() -> None:
    mode = FakeTensorMode()
    with mode:
        known = torch.tensor([3.0])
    assert getattr(known, "constant", None) is not None
    assert shortcut(mode, aten.view.default, (known, [1, 1]), {}) is NotImplemented
    assert shortcut(FakeTensorMode(), aten.detach.default, (known,), {}) is NotImplemented


def test_lists_that_change_in_place_give_nothing_and_others_their_result() -> None:
    mode = FakeTensorMode()
    with mode:
        tensors = [torch.empty(3), torch.empty(4)]
    assert shortcut(mode, aten._foreach_mul_.Scalar, (tensors, 2.0), {}) is None
    assert shortcut(mode, aten._foreach_mul.Scalar, (tensors, 2.0), {}) is NotImplemented
    assert shortcut(mode, aten.mm.default, (tensors, 2.0), {}) is NotImplemented
