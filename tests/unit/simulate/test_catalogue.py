"""GPUs by name: short names, full ones, and those that drivers report."""

from __future__ import annotations

import pytest

from gpuledger.errors import UsageError
from gpuledger.simulate.catalogue import catalogue, find_card


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("h200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("4070 Ti super", "rtx-4070-ti-super"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("RTX PRO 6000", "rtx-pro-6000"),
        ("Quadro RTX 8000", "rtx-8000"),
    ],
)
def test_a_gpu_has_the_names_that_people_and_drivers_give_it(name: str, key: str) -> None:
    assert find_card(name).key == key


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("A100", "a100-80gb, a100-40gb"),
        ("H100", "h100-80gb"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx"),
        ("NVIDIA A10G", "a10"),
        ("RTX 4070 Ti", "rtx-4070"),
        ("RTX", "rtx"),
        ("", "h200"),
    ],
)
def test_a_name_of_several_or_of_other_gpus_is_an_error_with_the_nearest_names(name: str, near: str) -> None:
    with pytest.raises(UsageError, match="not in the catalogue of GPUs") as error:
        find_card(name)
    assert near in (error.value.hint or "")


def test_no_two_gpus_share_a_name() -> None:
    for key, card in catalogue().items():
        for name in (key, key.upper(), card.name, *card.driver_names):
            assert find_card(name).key == key
