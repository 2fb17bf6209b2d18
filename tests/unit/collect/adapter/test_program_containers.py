"""Tensors are found in containers without a line of the program's code running."""

from __future__ import annotations

from collections import OrderedDict, UserDict, UserList, defaultdict, namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from refusing import ASKED, OF_CONTAINERS, forbidden, ran, refusing
from torch import nn

from gpuledger.collect.adapter.program_objects import (
    CONTAINER_LEVELS,
    is_tensor,
    tensors_in,
)

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def nothing_runs() -> Iterator[None]:
    ran.clear()
    yield
    assert ran == []


# -- containers -------------------------------------------------------------------------------------------------------

TENSOR = torch.ones(3)


class Point(NamedTuple):
    x: Any
    y: Any


Named = namedtuple("Named", "a b")


@dataclass
class Plain:
    a: Any = None
    b: Any = field(default=None, repr=False)


@dataclass(slots=True)
class Slotted:
    a: Any = None
    b: Any = None


@dataclass(frozen=True)
class Frozen:
    a: Any


@dataclass
class WithProperty:
    a: Any
    shown: int = 0

    @property
    def computed(self) -> Any:
        return forbidden("property")()


@dataclass
class FieldIsProperty:
    a: Any
    b: Any = None

    def __getattribute__(self, name: str) -> Any:
        return forbidden("__getattribute__")()


HiddenDict = refusing(dict, *OF_CONTAINERS)
HiddenList = refusing(list, *ASKED, "__getattribute__")
HiddenTuple = refusing(tuple, *ASKED, "__getattribute__")
HiddenSet = refusing(frozenset, "__iter__", "__len__", "__bool__", "__contains__")
HiddenUserDict = refusing(UserDict, *(name for name in OF_CONTAINERS if name != "__getattribute__"))


def hidden_dict() -> Any:
    made: Any = dict.__new__(HiddenDict)
    dict.__setitem__(made, "x", TENSOR)
    return made


def hidden_list() -> Any:
    made: Any = list.__new__(HiddenList)
    list.append(made, TENSOR)
    return made


def hidden_user_dict() -> Any:
    made: Any = object.__new__(HiddenUserDict)
    made.__dict__["data"] = {"x": TENSOR}
    return made


CONTAINERS: dict[str, Any] = {
    "tensor": TENSOR,
    "parameter": nn.Parameter(TENSOR),
    "list": [1, TENSOR, "a"],
    "tuple in a dict": {"a": (TENSOR, None)},
    "set": {TENSOR},
    "frozenset": frozenset([TENSOR]),
    "ordered dict": OrderedDict(x=TENSOR),
    "default dict": defaultdict(list, x=[TENSOR]),
    "named tuple": Point(TENSOR, 1),
    "named tuple of collections": Named(1, TENSOR),
    "user dict": UserDict(x=TENSOR),
    "dict subclass": hidden_dict(),
    "list subclass": hidden_list(),
    "tuple subclass": tuple.__new__(HiddenTuple, (TENSOR,)),
    "set subclass": frozenset.__new__(HiddenSet, [TENSOR]),
    "user dict subclass": hidden_user_dict(),
    "dataclass": Plain(TENSOR),
    "dataclass with slots": Slotted(b=TENSOR),
    "frozen dataclass": Frozen([TENSOR]),
    "dataclass with a property": WithProperty(TENSOR),
    "dataclass with its own reading": FieldIsProperty(TENSOR),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_the_tensor_inside_is_found(name: str) -> None:
    assert len(list(tensors_in(CONTAINERS[name]))) == 1


class Proxy:
    """Says that it is another kind of thing."""

    @property  # type: ignore[misc]  # Python takes it, types have none such
    def __class__(self) -> type:  # type: ignore[override]
        ran.append("__class__")
        return torch.Tensor


class IsAMapping(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        return forbidden("__getitem__")()

    def __iter__(self) -> Iterator[str]:
        return forbidden("__iter__")()  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return forbidden("__len__")()  # type: ignore[no-any-return]


class AnyAttribute:
    def __getattr__(self, name: str) -> Any:
        return forbidden(name)()


class ClaimsFields:
    __dataclass_fields__ = 3


class PropertyFields:
    __dataclass_fields__ = property(forbidden("__dataclass_fields__"))


@dataclass(slots=True)
class NothingPut:
    a: Any

    def __init__(self) -> None:
        """Leave the slot empty."""


OTHERS: dict[str, Any] = {
    "number": 3,
    "text": "tensor",
    "class": torch.Tensor,
    "dataclass itself": Plain,
    "proxy": Proxy(),
    "mapping of the program's": IsAMapping(),
    "any attribute": AnyAttribute(),
    "fields that are none": ClaimsFields(),
    "fields by a property": PropertyFields(),
    "empty slot": NothingPut(),
    "user list": UserList([TENSOR]),
    "generator": (one for one in [TENSOR]),
    "user dict without data": UserDict.__new__(UserDict),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_cannot_be_read_safely_is_left_alone(name: str) -> None:
    assert list(tensors_in(OTHERS[name])) == []


def test_a_generator_is_not_used_up() -> None:
    generator = (one for one in [TENSOR])
    list(tensors_in([generator]))
    assert next(generator) is TENSOR


def test_depth_is_bounded_and_cycles_end() -> None:
    deep: list[Any] = [TENSOR]
    for _ in range(CONTAINER_LEVELS - 1):
        deep = [deep]
    assert len(list(tensors_in(deep))) == 1
    assert list(tensors_in([deep])) == []
    cycle: list[Any] = []
    cycle.append(cycle)
    assert list(tensors_in(cycle)) == []


def test_a_tensor_subclass_is_a_tensor_and_a_proxy_is_none() -> None:
    class Marked(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_: Any, **__: Any) -> Any:
            return forbidden("__torch_function__")()

    assert is_tensor(torch.Tensor._make_subclass(Marked, torch.ones(2)))
    assert not is_tensor(Proxy())
