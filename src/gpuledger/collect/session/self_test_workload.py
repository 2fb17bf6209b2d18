"""A small computation with known tensors, for the self-test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gpuledger.collect.adapter import torch_private

WIDTHS = (1_000, 37)
BATCH = 64


@dataclass(frozen=True)
class SelfTestWorkload:
    """Tensors by name. The object keeps them alive."""

    tensors: dict[str, torch.Tensor]

    def storages(self) -> dict[str, tuple[int, int]]:
        """Return ``name -> (address, bytes)`` of each tensor's storage."""
        storages = {name: tensor.untyped_storage() for name, tensor in self.tensors.items()}
        return {name: (storage.data_ptr(), storage.nbytes()) for name, storage in storages.items()}


def compute(device: str) -> SelfTestWorkload:
    """Return input, parameters, their gradients and the loss of one forward and backward on ``device``."""
    net = torch.nn.Linear(*WIDTHS).to(device)
    inputs = torch.ones(BATCH, WIDTHS[0], device=device)
    loss = net(inputs).square().mean()
    loss.backward()
    tensors = {"inputs": inputs, "loss": loss.detach()}
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        tensors |= {name: parameter.data, f"{name}.grad": parameter.grad}
    return SelfTestWorkload(tensors)


def describe_torch() -> dict[str, Any]:
    """Return torch's version, CUDA build and devices, and what does not work because private functions are missing."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "torch_version": torch.__version__,
        "cuda_build": torch.version.cuda,
        "device_count": count,
        "lost": {name: lost for name, lost in torch_private.capabilities().items() if lost},
        "no_history": torch_private.keeps_cuda_history() if count else None,
    }
