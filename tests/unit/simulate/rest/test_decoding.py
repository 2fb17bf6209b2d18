"""generate() is shortened, and its memory is that of all its tokens."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from libraries import needs

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.estimate.growth import GrowthWatch
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.rest import decoding
from gpuledger.simulate.rest.decoding import ShortenedDecoding

pytestmark = [pytest.mark.torch, needs("transformers")]
ROWS, PROMPT, NEW = 4096, 4, 40
"""A short prompt and many rows: the peak is in the last token, and not in the prompt."""


def generated(said: list[str], shorten: bool, **how: Any) -> tuple[SimulatedDevice, Any]:
    """Return the GPU and the tokens of a small decoder."""
    models: Any = importlib.import_module("transformers")  # for half a second, which no other file takes
    device = SimulatedDevice(find_card("h200"), CachingAllocator())
    shortened = ShortenedDecoding(device, said.append)
    config = models.LlamaConfig(
        vocab_size=300,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=4,
        eos_token_id=None,
        pad_token_id=0,
    )
    with in_place(
        device, lambda _: None, install_more=lambda patches, _: shortened.install(patches) if shorten else None
    ):
        model = models.LlamaForCausalLM(config).to("cuda").eval()
        prompt = torch.ones(ROWS, PROMPT, dtype=torch.long, device="cuda")
        found = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, **how)
        return device, found


@pytest.mark.parametrize("how", [{}, {"do_sample": True, "top_k": 20}, {"return_dict_in_generate": True}])
def test_the_peak_is_that_of_all_tokens(how: dict[str, Any]) -> None:
    said: list[str] = []
    short, found = generated(said, True, **how)
    whole, expected = generated([], False, **how)
    tokens, all_tokens = (getattr(one, "sequences", one) for one in (found, expected))
    assert tokens.shape == all_tokens.shape == (ROWS, PROMPT + NEW)
    assert short.counters.alloc_count < whole.counters.alloc_count / 2
    assert short.counters.peak_allocated_bytes == pytest.approx(whole.counters.peak_allocated_bytes, rel=0.01)
    assert said == [
        f"generate(): {decoding.TOKENS} of {NEW} tokens were simulated. The memory of the others follows from the "
        "growth of these."
    ]


def test_beams_have_all_tokens() -> None:
    """Values decide when beams end, which are not computed."""
    _, found = generated([], True, num_beams=2)
    assert found.shape == (ROWS, PROMPT + NEW)


def test_a_call_that_returns_what_each_token_gave_is_not_shortened() -> None:
    said: list[str] = []
    _, found = generated(said, True, return_dict_in_generate=True, output_scores=True)
    assert (len(found.scores), said) == (NEW, [])


def test_steps_that_generate_are_no_growth() -> None:
    device = SimulatedDevice(find_card("h200"), CachingAllocator())
    watch = GrowthWatch(device)
    device.decodes = True
    for step in range(20):
        device.allocator.malloc(1 << 20)
        watch.see(step)
    assert not watch.is_certain
    device.decodes = False
    for step in range(20):
        device.allocator.malloc(1 << 20)
        watch.see(step)
    assert watch.is_certain
