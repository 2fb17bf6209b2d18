"""The weights of a copy of a region's backward tell for which module it runs."""

from __future__ import annotations

from torch import Tensor, nn

from gpuledger.collect.adapter.compiler.compiled_autograd import CopiedRegion
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.compiled.copied_regions import module_in_copy


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.act = nn.GELU()


FIRST, SECOND = Block(), Block()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([FIRST, SECOND])
        self.head = nn.Linear(2, 2)


NET = Net()
REGISTRY = ModuleRegistry()
REGISTRY.register(NET)


def path_of(path: str, *weights: Tensor, compiled: dict[str, nn.Module], is_sure: bool = True) -> str | None:
    """Return the path of the module that a place is in; None if it is not known."""
    modules = {below: id(module) for below, module in compiled.items()}
    number = module_in_copy(REGISTRY, CopiedRegion(modules, {id(weight) for weight in weights}, is_sure), path)
    return None if number < 0 else REGISTRY.path_of(number)


def of_block(block: Block) -> dict[str, nn.Module]:
    return {"fc": block.fc, "act": block.act}


def test_a_copy_with_the_weights_of_its_region_is_on_the_regions_modules() -> None:
    weight = FIRST.fc.weight
    assert path_of("fc", weight, compiled=of_block(FIRST)) == "blocks.0.fc"
    assert path_of("act", weight, compiled=of_block(FIRST)) == "blocks.0.act"
    assert path_of("", weight, compiled=of_block(FIRST)) == "blocks.0"


def test_a_copy_with_the_weights_of_another_block_is_on_that_block() -> None:
    weight = SECOND.fc.weight
    assert path_of("fc", weight, compiled=of_block(FIRST)) == "blocks.1.fc"
    assert path_of("act", weight, compiled=of_block(FIRST)) == "blocks.1.act"
    assert path_of("", weight, compiled=of_block(FIRST), is_sure=False) == "blocks.1"


def test_a_whole_model_is_around_its_modules() -> None:
    compiled = {"blocks.0.fc": FIRST.fc, "blocks.1.act": SECOND.act, "head": NET.head}
    assert path_of("", NET.head.weight, compiled=compiled) == ""
    assert path_of("blocks.1.act", NET.head.weight, compiled=compiled) == "blocks.1.act"


def test_what_no_weight_tells_is_on_no_module() -> None:
    assert path_of("fc", compiled=of_block(FIRST)) is None
    assert path_of("fc", nn.Parameter(FIRST.fc.weight.detach()), compiled=of_block(FIRST)) is None
    assert path_of("fc", NET.head.weight, compiled=of_block(FIRST)) is None  # nothing like a block is around it
