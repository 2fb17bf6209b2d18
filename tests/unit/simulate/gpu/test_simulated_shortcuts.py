"""A fake result that is made by a shortcut is the one that torch makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from gpuledger.simulate.gpu.shortcuts import _VIEWS, Shortcuts

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


def told(result: Any) -> Any:
    """Return what can be told of a fake result."""
    if not isinstance(result, torch.Tensor):
        return [told(one) for one in result] if isinstance(result, (list, tuple)) else result
    assert isinstance(result, FakeTensor)
    place = result.storage_offset(), result.untyped_storage().nbytes(), result.fake_device
    kind = type(result), result.dtype, result.requires_grad, str(torch._C._dispatch_key_set(result))
    return tuple(result.shape), result.stride(), place, kind, sorted(vars(result))


@pytest.mark.parametrize("func", sorted(_VIEWS, key=str), ids=str)
def test_a_view_is_torchs_own(func: Any) -> None:
    mode = FakeTensorMode()
    with mode:
        tensor = torch.empty(7, 6, dtype=torch.bfloat16)[1:5]
        expected = func(tensor, *ARGUMENTS[func])
    shortcuts = Shortcuts(mode)
    for _ in range(2):
        found = shortcuts.result(func, (tensor, *ARGUMENTS[func]), {})
        assert told(found) == told(expected)
        assert found.untyped_storage()._cdata == tensor.untyped_storage()._cdata


def test_what_cannot_be_viewed_is_refused_as_by_torch() -> None:
    mode = FakeTensorMode()
    with mode:
        tensor = torch.empty(4, 6)
    with pytest.raises(RuntimeError, match="invalid for input of size 24"):
        Shortcuts(mode).result(aten.view.default, (tensor, [5, 5]), {})


def test_a_tensor_whose_value_is_known_goes_torchs_way() -> None:
    mode = FakeTensorMode()
    with mode:
        known = torch.tensor([3.0])
    assert getattr(known, "constant", None) is not None
    viewed = Shortcuts(mode).result(aten.view.default, (known, [1, 1]), {})
    assert viewed.constant.tolist() == [[3.0]]


def test_lists_that_change_in_place_give_nothing() -> None:
    mode = FakeTensorMode()
    with mode:
        tensors = [torch.empty(3), torch.empty(4)]
    assert Shortcuts(mode).result(aten._foreach_mul_.Scalar, (tensors, 2.0), {}) is None


@pytest.fixture
def torchs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Count the results that torch makes."""
    made: list[Any] = []
    plain: Callable[..., Any] = Shortcuts._torchs

    def counted(self: Shortcuts, func: Any, args: Any, kwargs: Any) -> Any:
        made.append(func)
        return plain(self, func, args, kwargs)

    monkeypatch.setattr(Shortcuts, "_torchs", counted)
    return made


def _calls(a: torch.Tensor, whole: torch.Tensor) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    return [
        (aten.logaddexp.default, (a, a), {}),
        (aten.mul.Tensor, (a, 2.0), {}),
        (aten.div.Tensor, (whole, 2), {}),
        (aten.eq.Scalar, (a, 1), {}),
        (aten.sum.dim_IntList, (a, [1], True), {"dtype": torch.float64}),
        (aten.sum.dim_IntList, (a, [1], True), {}),
        (aten.native_layer_norm.default, (a, [6], None, None, 1e-5), {}),
        (aten._foreach_mul.Scalar, ([a, whole], 2.0), {}),
        (aten.cat.default, ([a, a], 1), {}),
        (aten.clone.default, (a.t(),), {}),
        (aten.select_backward.default, (a, [4, 6, 3], 2, 1), {}),
        (aten.convolution_backward.default,
         (a[None], a[None], a[:, :1, None].expand(4, 4, 1).contiguous(), None, [1], [0], [1], False, [0], 1,
          [True, True, False]), {}),
        (aten.index.Tensor, (a, [whole]), {}),
    ]  # fmt: skip


def test_results_with_known_arguments_are_torchs_own_and_have_memory_of_their_own(torchs: list[Any]) -> None:
    mode = FakeTensorMode()
    with mode:
        a, whole = torch.empty(4, 6), torch.empty(3, dtype=torch.int64)
        calls = _calls(a, whole)
        expected = [func(*args, **kwargs) for func, args, kwargs in calls]
    shortcuts = Shortcuts(mode)
    first = [shortcuts.result(*call) for call in calls]
    assert torchs == [func for func, _, _ in calls]
    again = [shortcuts.result(*call) for call in calls]
    assert torchs == [func for func, _, _ in calls]
    assert told(first) == told(again) == told(expected)
    leaves = [one for one in torch.utils._pytree.tree_leaves([first, again]) if one is not None]
    storages = [one.untyped_storage()._cdata for one in leaves]
    assert len(set(storages)) == len(storages)


def test_an_argument_that_is_changed_in_place_is_the_result() -> None:
    mode = FakeTensorMode()
    with mode:
        first, second = torch.empty(4, 6), torch.empty(4, 6)
    shortcuts = Shortcuts(mode)
    for tensor in (first, second, first):
        assert shortcuts.result(aten.add_.Tensor, (tensor, 1.0), {}) is tensor


@pytest.mark.parametrize("other", ["shape", "dtype", "stride", "number", "default", "inference"])
def test_other_arguments_have_another_result(other: str) -> None:
    mode = FakeTensorMode()
    with mode:
        a, small = torch.empty(4, 6), torch.empty(4, 1)
        whole = torch.empty(4, 6, dtype=torch.int32)
    shortcuts = Shortcuts(mode)

    def result(*args: Any) -> Any:
        found = shortcuts.result(aten.div.Tensor, args, {})
        with mode:
            assert told(found) == told(aten.div.Tensor(*args))
        return found

    before = told(result(whole, 2))
    result(a, 2)
    if other == "default":
        torch.set_default_dtype(torch.float64)
        try:
            assert told(result(whole, 2)) != before
        finally:
            torch.set_default_dtype(torch.float32)
    elif other == "inference":
        with torch.inference_mode():
            assert result(a, 2).is_inference()
        assert not result(a, 2).is_inference()
    else:
        arguments = {"shape": (small, 2), "dtype": (whole, 2), "stride": (a.t(), 2), "number": (whole, 2 + 0j)}
        result(*arguments[other])


def test_results_that_depend_on_values_or_are_an_argument_are_torchs_each_time(torchs: list[Any]) -> None:
    mode = FakeTensorMode()
    with mode:
        a, mask = torch.empty(4, 6), torch.ones(4, 6, dtype=torch.bool)
        data = torch.empty(2, 6)
    shortcuts = Shortcuts(mode)
    assert shortcuts.result(aten.dropout.default, (a, 0.5, False), {}) is shortcuts.result(
        aten.dropout.default, (a, 0.5, False), {}
    )
    for func in (aten.index.Tensor, aten.nonzero.default):
        for _ in range(2):
            with pytest.raises(Exception, match=r"nonzero|dynamic|index"):
                shortcuts.result(func, (a, [mask]) if func is aten.index.Tensor else (mask,), {})
    for rows in (4, 2):
        out = shortcuts.result(aten.mul.out, (data, 2.0), {"out": shortcuts.result(aten.clone.default, (data,), {})})
        assert tuple(out.shape) == (2, 6), rows
    assert torchs.count(aten.dropout.default) == 2
    assert torchs.count(aten.mul.out) == 2


def test_the_number_of_results_that_are_kept_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuledger.simulate.gpu.shortcuts._MOST_KNOWN", 3)
    mode = FakeTensorMode()
    with mode:
        a = torch.empty(4, 6)
    shortcuts = Shortcuts(mode)
    for number in range(10):
        shortcuts.result(aten.mul.Tensor, (a, float(number)), {})
        assert len(shortcuts._known) <= 3
