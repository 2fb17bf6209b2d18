"""Samples and tokens per second: of warm steps, as the program measures them itself, and only where they are known."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from present import present
from programs import write_script
from quick import recorded

from gpuledger.analyze.step.rates import Rates, find_rates
from gpuledger.analyze.step.steps import unprofiled_steps
from gpuledger.cli.main import main
from gpuledger.report.base.phrases import rate
from gpuledger.services.runs import load

pytestmark = pytest.mark.torch

HEAD = """
import json, time
import torch
from torch import nn
torch.manual_seed(0)
"""
TRAINING = """
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ends = []
for number in range(13):
    time.sleep(0.5 if number == 0 else 0.04)
    for part in range(PARTS):
        batch = torch.randn(BATCH, 8)  # before the last one is freed: another at its address would be the same batch
        model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    ends.append(time.perf_counter())
print(json.dumps({number: later - earlier for number, (earlier, later) in enumerate(zip(ends, ends[1:]), 2)}))
"""
GENERATION = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 50)
        self.calls = 0
    def forward(self, ids):
        self.calls += 1
        time.sleep(0.4 if self.calls <= 2 else 0.06 if ids.shape[1] > 1 else 0.03)
        return self.words(ids)
model = Model().eval()
took = {16: [], 1: []}
last = time.perf_counter()
with torch.no_grad():
    for prompt in range(PROMPTS):
        for length in (16, 1, 1, 1):
            model(torch.ones(2, length, dtype=torch.long))
            now = time.perf_counter()
            took[length].append((model.calls, now - last))
            last = now
print(json.dumps(took))
"""


def samples_per_s(directory: Path, took_s: dict[str, float]) -> float:
    """Return the rate of 16 samples a step by the program's own times of the steps that gpuledger does not profile."""
    unprofiled = unprofiled_steps(load(directory / "train.ledger").rank(0), kind="optimizer")
    return 16 / statistics.median(took_s[str(number)] for number in unprofiled)


def tokens_per_s(directory: Path, took_s: dict[str, list[tuple[int, float]]], length: int) -> float:
    """Return the rate of two rows by the program's own times of the warm calls that gpuledger does not profile."""
    unprofiled = unprofiled_steps(load(directory / "train.ledger").rank(0), kind="call")
    warm_s = [each for number, each in took_s[str(length)][1:] if number > 5 and number in unprofiled]
    return 2 * length * len(warm_s) / sum(warm_s)


def rates_of(directory: Path, source: str, *options: str) -> tuple[Rates, dict[str, Any]]:
    """Return the rates of a recording, and those that the program measured."""
    write_script(directory, HEAD + source)
    ended = recorded(["train.py"], directory, ("-q", "--passes", "memory,time,energy:30", *options))
    assert ended.status == 0, ended.stderr
    return present(find_rates(load(directory / "train.ledger").rank(0))), json.loads(ended.stdout)


@pytest.mark.parametrize(("batch", "parts"), [("16", "1"), ("4", "4")])
def test_samples_per_second_are_those_that_the_program_measures(batch: str, parts: str, tmp_path: Path) -> None:
    """A step of one batch, and one that accumulates the gradients of four."""
    rates, measured = rates_of(tmp_path, TRAINING.replace("BATCH", batch).replace("PARTS", parts))
    assert present(rates.samples_per_s) == pytest.approx(samples_per_s(tmp_path, measured), rel=0.1)


@pytest.mark.parametrize(("batch", "parts"), [("16", "4"), ("16 if number % 2 else 12", "1")])
def test_samples_per_second_are_not_guessed(batch: str, parts: str, tmp_path: Path) -> None:
    """A step of four passes over one batch, and batches of two sizes."""
    loop, draw = "    for part in range(PARTS):\n", "batch = torch.randn(BATCH, 8)"
    source = TRAINING.replace(draw, "pass").replace(loop, f"    {draw}\n{loop}")
    rates, _ = rates_of(tmp_path, source.replace("BATCH", batch).replace("PARTS", parts))
    assert rates.samples_per_s is None
    assert rates.sample_energy_j is None


@pytest.mark.parametrize(
    ("layer", "shape", "is_whole", "batch"),
    [("nn.Linear(8, 4)", (8,), False, None), ("nn.Embedding(9, 4)", (16,), True, 16)],
)
def test_one_dimension_is_a_batch_of_numbers_of_words_but_not_of_values(
    layer: str, shape: tuple[int, ...], is_whole: bool, batch: int | None, tmp_path: Path
) -> None:
    data = f"torch.ones({shape}, dtype=torch.{'long' if is_whole else 'float'})"
    source = TRAINING.replace("nn.Linear(8, 4)", layer).replace("torch.randn(BATCH, 8)", data).replace("PARTS", "1")
    write_script(tmp_path, HEAD + source)
    assert recorded(["train.py"], tmp_path, ("-q",)).status == 0
    rates = find_rates(load(tmp_path / "train.ledger").rank(0))
    assert (rates.batch if rates else None) == batch


def test_the_batch_is_that_of_the_training_and_not_of_a_helper_before(tmp_path: Path) -> None:
    helper = "helper = nn.Linear(3, 3)\nwith torch.no_grad():\n    helper(torch.randn(99, 3))\n"
    source = TRAINING.replace("model =", "\n" + helper + "model =").replace("BATCH", "16").replace("PARTS", "1")
    rates, measured = rates_of(tmp_path, source, "--step-on", "optimizer")
    assert rates.batch == 16
    # The helper's batch would be six times as many. How exact the rate is, another test shows.
    assert present(rates.samples_per_s) == pytest.approx(samples_per_s(tmp_path, measured), rel=0.5)


def test_tokens_per_second_are_of_warm_calls_and_those_that_the_program_measures(tmp_path: Path) -> None:
    rates, measured = rates_of(tmp_path, GENERATION.replace("PROMPTS", "6"))
    assert {kind.name for kind in rates.kinds} == {"prefill", "decode"}
    for kind in rates.kinds:
        assert kind.tokens_per_s == pytest.approx(tokens_per_s(tmp_path, measured, int(kind.length)), rel=0.15)


def test_a_generation_without_a_cache_has_no_samples_per_second(tmp_path: Path) -> None:
    source = GENERATION.replace("PROMPTS", "1").replace("(16, 1, 1, 1)", "range(16, 32)")
    source = source.replace("{16: [], 1: []}", "{length: [] for length in range(16, 32)}")
    rates, _ = rates_of(tmp_path, source, "--steps", "1:2")
    assert rates.samples_per_s is None
    assert rates.kinds == ()


def test_a_model_that_checks_proposed_tokens_has_no_samples_per_second(tmp_path: Path) -> None:
    source = GENERATION.replace("PROMPTS", "1").replace("(16, 1, 1, 1)", "(16, *[5] * 14)")
    source = source.replace("{16: [], 1: []}", "{16: [], 5: []}")
    rates, _ = rates_of(tmp_path, source, "--steps", "1:2")
    assert rates.samples_per_s is None
    assert rates.kinds == ()


def test_a_single_prefill_has_no_rate(tmp_path: Path) -> None:
    source = GENERATION.replace("PROMPTS", "1").replace("(16, 1, 1, 1)", "(16, *[1] * 14)")
    rates, measured = rates_of(tmp_path, source, "--steps", "2:2")
    assert [kind.name for kind in rates.kinds] == ["decode"]
    assert rates.kinds[0].tokens_per_s == pytest.approx(tokens_per_s(tmp_path, measured, 1), rel=0.15)
    assert rates.samples_per_s is None


def test_a_training_without_an_optimizer_is_no_generation(tmp_path: Path) -> None:
    source = """
    words = nn.Embedding(50, 8)
    for _ in range(13):
        loss = words(torch.ones(4, 16, dtype=torch.long)).square().mean()
        gradients = torch.autograd.grad(loss, list(words.parameters()))
        with torch.no_grad():
            words.weight -= 0.1 * gradients[0]
    print("{}")
    """
    rates, _ = rates_of(tmp_path, source.replace("\n    ", "\n"))
    assert rates.kinds == ()
    assert rates.samples_per_s is not None


BEAMS = """
import json, time
import torch
from transformers import GPT2Config, GPT2LMHeadModel
torch.manual_seed(0)
config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=64, pad_token_id=0)
model = GPT2LMHeadModel(config).eval()
ended_s = [time.perf_counter()]
model.register_forward_pre_hook(lambda *_: time.sleep(0.05))
model.register_forward_hook(lambda *_: ended_s.append(time.perf_counter()))
ids = torch.randint(2, 40, (1, 8))
words = {"max_new_tokens": 12, "min_new_tokens": 12, "num_beams": BEAMS, "do_sample": False}
for number in range(4):
    returned = model.generate(ids, attention_mask=torch.ones_like(ids), **words).shape[1] - 8
took_s = {number: later - earlier for number, (earlier, later) in enumerate(zip(ended_s, ended_s[1:]), 1)}
print(json.dumps({"returned": returned, "took_s": took_s}))
"""


@pytest.mark.parametrize("beams", [1, 4])
def test_tokens_per_second_are_those_of_a_returned_text_with_beams_too(beams: int, tmp_path: Path) -> None:
    """Four beams in place of one would be a factor of four. Each call returns a token; the first is a prefill.

    What comes between two calls counts to the one for gpuledger, and to the other here.
    """
    pytest.importorskip("transformers")
    rates, measured = rates_of(tmp_path, BEAMS.replace("BEAMS", str(beams)), "--steps", "1:2")
    decode = next(kind for kind in rates.kinds if kind.name == "decode")
    assert decode.rows == beams
    returned = measured["returned"]
    assert len(measured["took_s"]) == 4 * returned == 48
    calls = {number for number in range(3, 49) if number % returned != 1}
    unprofiled = calls & unprofiled_steps(load(tmp_path / "train.ledger").rank(0), kind="call").keys()
    call_s = statistics.fmean(measured["took_s"][str(number)] for number in unprofiled)
    assert decode.row_tokens_per_s == pytest.approx(1 / call_s, rel=0.5)
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "train.ledger")]).stdout
    assert (" tokens/s in each row (4 rows, beams included" in shown) is (beams == 4)
    assert f"decode {rate(decode.row_tokens_per_s)} tokens/s" in shown


SEQUENCES = """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.layer = LAYER
    def forward(self, ids):
        x = self.words(ids)
        return self.layer(x, x, x)[0] if isinstance(self.layer, nn.MultiheadAttention) else self.layer(x)[0]
model = Words()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(13):
    model(torch.ones(6, 4, dtype=torch.long)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("layer", "batch"),
    [
        ("nn.LSTM(8, 8)", None),
        ("nn.MultiheadAttention(8, 2)", None),
        ("nn.LSTM(8, 8, batch_first=True)", 6),
        ("nn.MultiheadAttention(8, 2, batch_first=True)", 6),
    ],
)
def test_the_length_of_a_sequence_is_not_taken_for_the_batch(layer: str, batch: int | None, tmp_path: Path) -> None:
    """Layers of PyTorch have the sequence first by default."""
    write_script(tmp_path, HEAD + SEQUENCES.replace("LAYER", layer))
    ended = recorded(["train.py"], tmp_path, ("-q",))
    assert ended.status == 0, ended.stderr
    rates = find_rates(load(tmp_path / "train.ledger").rank(0))
    assert (rates.step_samples if rates else None) == batch
