"""Addresses of storages are read without creating torch's Python object for them."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.program_objects import storage_address


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_the_address_is_that_of_the_storage_for_views_too(dtype: torch.dtype) -> None:
    whole = torch.zeros(4, 6, dtype=dtype)
    expected = whole.untyped_storage().data_ptr()
    for tensor in (whole, whole[2], whole.t()[1:], whole[1:, 2::2]):
        assert storage_address(tensor) == expected


def test_no_object_is_made_for_the_storage() -> None:
    tensor = torch.zeros(4)
    gc.collect()  # what other tests have left behind must not become garbage meanwhile
    before = sum(issubclass(type(thing), torch.UntypedStorage) for thing in gc.get_objects())
    assert storage_address(tensor)
    assert sum(issubclass(type(thing), torch.UntypedStorage) for thing in gc.get_objects()) == before


def test_tensors_without_memory_have_no_address_and_nothing_is_printed() -> None:
    with FakeTensorMode():
        fake = torch.zeros(3)
    seen = []
    torch.vmap(lambda one: seen.append(storage_address(one)) or one)(torch.zeros(2, 3))  # type: ignore[func-returns-value]
    torch.func.functionalize(lambda one: seen.append(storage_address(one)) or one + 1)(torch.zeros(2))  # type: ignore[func-returns-value]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen += [storage_address(one) for one in (fake, torch.zeros(3, device="meta"), torch.zeros(0))]
    assert seen == [0] * 5


@pytest.mark.parametrize(("contexts", "expected"), [([False, False], False), ([False, True], True)])
def test_initialized_cuda_is_not_a_context(
    contexts: list[bool], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(contexts))
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", contexts.__getitem__, raising=False)
    assert torch_private.has_cuda_context() is expected
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert not torch_private.has_cuda_context()
