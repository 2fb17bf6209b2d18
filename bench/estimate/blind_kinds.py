"""Lists what kind of layers each training has that was estimated before it ran, from the modules of its model.

Models are built on the CPU. Needs no GPU, but torchvision, transformers and timm. A training is of the first kind that
it has a module of: recurrent layers and cells, convolutions, or neither.

Usage: python bench/estimate/blind_kinds.py --out bench/estimate/results/cpu/blind_kinds.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from blind_train import SETS
from environment import describe_environment, write_results
from grid_train import HELD_OUT, NEW, build
from torch import nn
from torch.nn.modules.conv import _ConvNd

KINDS = {"recurrent": (nn.RNNBase, nn.RNNCellBase), "convolutions": (_ConvNd,)}
OTHERS = "neither"


def kind_of(model: nn.Module) -> str:
    """Return the kind of layers that a model has."""
    for kind, classes in KINDS.items():
        if any(isinstance(module, classes) for module in model.modules()):
            return kind
    return OTHERS


def trainings() -> Iterator[tuple[str, nn.Module]]:
    """Yield name and model of every training that was estimated before it ran."""
    for one in (*HELD_OUT, *NEW):
        yield one.name, build(one.model, one.batch, "cpu")[0]
    for some in SETS.values():
        for name, (make, *_) in some.items():
            yield name, make()


def main() -> None:
    """Build every model and write the kinds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    from gpuledger.simulate.gpu.card import let_torchvision_import

    let_torchvision_import()
    kinds = {name: kind_of(model) for name, model in trainings()}
    write_results(options.out, {"environment": describe_environment("cpu"), "kinds": kinds})


if __name__ == "__main__":
    main()
