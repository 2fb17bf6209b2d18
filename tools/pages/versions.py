"""With which versions of PyTorch and on which GPUs the committed results were measured."""

from __future__ import annotations

from pages.blocks import ROOT, block
from pages.results import environment_of, read, wrap


@block("versions of PyTorch")
def versions_of_pytorch() -> list[str]:
    """Return the versions that ran on a GPU and those that only ran on a CPU."""
    on_gpu: set[str] = set()
    on_cpu: set[str] = set()
    cards: set[str] = set()
    for place in sorted((ROOT / "bench").glob("*/results/*/*.json")):
        told = environment_of(read(str(place.relative_to(ROOT / "bench"))))
        version = told.get("versions", {}).get("torch")
        if version is None:
            continue
        (on_gpu if told.get("card") else on_cpu).add(version.partition("+")[0])
        cards |= {told["card"]} if told.get("card") else set()
    only_cpu = " and ".join(sorted(on_cpu - on_gpu))
    return wrap(
        f"On a GPU ({' and '.join(sorted(cards))}), everything was measured with",
        f"PyTorch {' and '.join(sorted(on_gpu))}.",
        f"PyTorch {only_cpu} ran on CPUs only, and not yet on a GPU." if only_cpu else "",
    )
