"""Steps are counted as a person would count the iterations of each kind of program."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from programs import write_script
from quick import recorded
from recorded import read_recorded

from gpuledger.analyze.overview.summary import summarize
from gpuledger.analyze.posting.posting import FUNCTIONS_WITHOUT_MODULES
from gpuledger.collect.steps.call_steps import SWITCH_CALLS
from gpuledger.collect.steps.followed_optimizer import SWITCH_STEPS
from gpuledger.services.runs import load

pytestmark = pytest.mark.torch

ITERATIONS = 8

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
"""

GAN = """
generator, critic = nn.Linear(8, 16), nn.Linear(16, 1)
first, second = torch.optim.Adam(critic.parameters()), torch.optim.Adam(generator.parameters())
for _ in range(8):
    made = generator(torch.randn(4, 8))
    first.zero_grad()
    (critic(torch.randn(4, 16)).mean() - critic(made.detach()).mean()).backward()
    first.step()
    second.zero_grad()
    (-critic(made).mean()).backward()
    second.step()
"""
GAN_CRITIC_FIRST = GAN.replace("    made = generator(torch.randn(4, 8))\n", "").replace(
    "critic(made.detach())", "critic((made := generator(torch.randn(4, 8))).detach())"
)
WEIGHT_NORM = """
from torch.nn.utils.parametrizations import weight_norm
model = nn.Sequential(weight_norm(nn.Linear(8, 8)), nn.ReLU(), weight_norm(nn.Linear(8, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
TEACHER = """
teacher, student = nn.Linear(8, 4).eval(), nn.Linear(8, 4)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for _ in range(8):
    x = torch.randn(4, 8)
    with torch.no_grad():
        wanted = teacher(x)
    optimizer.zero_grad()
    (student(x) - wanted).square().mean().backward()
    optimizer.step()
"""
HELPERS_BEFORE = """
model, helper = nn.Linear(8, 4), nn.Linear(8, 8)
with torch.no_grad():
    for _ in range(3):
        shift = helper(torch.randn(4, 8)).mean()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    (model(torch.randn(4, 8)) - shift).square().mean().backward()
    optimizer.step()
"""
PREDICTIONS_BEFORE = """
model = nn.Linear(8, 4)
with torch.no_grad():
    model(torch.randn(4, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(28):
    with torch.no_grad():
        model(torch.randn(4, 8))
    if number >= 20:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
"""
VALIDATION = """
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if number % 2:
        model.eval()
        with torch.no_grad():
            for _ in range(5):
                model(torch.randn(4, 8))
        model.train()
"""
ACCUMULATION = """
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(32):
    model(torch.randn(4, 8)).square().mean().backward()
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""
RETRIEVER = """
retriever, reader = nn.Linear(8, 8), nn.Linear(8, 4)
optimizer = torch.optim.SGD([*retriever.parameters(), *reader.parameters()], lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    reader(retriever(torch.randn(4, 8)).relu()).square().mean().backward()
    optimizer.step()
"""
INFERENCE = """
model = nn.Linear(8, 4).eval()
with torch.inference_mode():
    for _ in range(8):
        model(torch.randn(4, 8))
"""
AUTOGRAD_GRAD = """
model = nn.Linear(8, 4)
for _ in range(8):
    loss = model(torch.randn(4, 8)).square().mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for weight, gradient in zip(model.parameters(), gradients):
            weight -= 0.1 * gradient
"""
WITH_GRADIENTS = """
model = nn.Linear(8, 4).eval()
for _ in range(8):
    model(torch.randn(4, 8))
"""
PIPELINE = """
encoder, denoiser, decoder = nn.Linear(8, 4), nn.Linear(4, 4), nn.Linear(4, 2)
with torch.no_grad():
    for _ in range(8):
        hidden = encoder(torch.randn(4, 8))
        for _ in range(3):
            hidden = denoiser(hidden)
        decoder(hidden)
"""
SPECULATIVE = """
draft, target = nn.Linear(8, 8).eval(), nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 8)).eval()
x = torch.randn(4, 8)
with torch.no_grad():
    for _ in range(8):
        for _ in range(3):
            x = draft(x)
        x = target(x)
"""
PREPARED = """
encoder, model = nn.Linear(8, 8).eval(), nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 8)).eval()
with torch.no_grad():
    data = [encoder(torch.randn(4, 8)) for _ in range(3)]
    for number in range(8):
        model(data[number % 3])
"""
CONSTRAINED_INFERENCE = """
from torch.nn.utils.parametrizations import spectral_norm
model = nn.Sequential(spectral_norm(nn.Linear(8, 8)), nn.ReLU(), spectral_norm(nn.Linear(8, 4)))
with torch.no_grad():
    for _ in range(8):
        model(torch.randn(4, 8))
"""
PART_CALLED_BEFORE = """
encoder = nn.Linear(8, 8).eval()
with torch.no_grad():
    width = encoder(torch.randn(4, 8)).shape[-1]
    model = nn.Sequential(encoder, nn.Linear(width, 4)).eval()
    for _ in range(7):
        model(torch.randn(4, 8))
"""
GENERATE = """
class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 10)
    def forward(self, ids):
        return self.words(ids)
    @torch.no_grad()
    def generate(self, ids, count):
        call = self.__call__
        for _ in range(count):
            ids = torch.cat([ids, call(ids)[:, -1:].argmax(-1)], 1)
        return ids
Generator().generate(torch.zeros(2, 4, dtype=torch.long), 8)
"""
GENERATE_BY_CLASS = GENERATE.replace(
    "call = self.__call__", "bound = type(self).__call__; call = lambda ids: bound(self, ids)"
)
GENERATE_DIRECTLY = GENERATE.replace("call = self.__call__", "call = self")
CALL_REPLACED = (
    """
torchs_own = nn.Module.__call__
nn.Module.__call__ = lambda self, *args, **kwargs: torchs_own(self, *args, **kwargs)
"""
    + INFERENCE
)
TRANSFORMERS = """
import transformers
settings = transformers.GPT2Config(vocab_size=20, n_positions=32, n_embd=8, n_layer=1, n_head=1)
model = transformers.GPT2LMHeadModel(settings).eval()
ids = torch.ones(1, 4, dtype=torch.long)
model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=None)
"""
REINFORCEMENT = """
policy, critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], lr=0.01)
for _ in range(8):
    state, states, actions = torch.randn(4, 4), [], []
    with torch.no_grad():
        for _ in range(6):
            action = torch.distributions.Categorical(logits=policy(state)).sample()
            states.append(state)
            actions.append(action)
            state = state + torch.randn(4, 4)
    states, actions = torch.cat(states), torch.cat(actions)
    gain = states.sum(1) - critic(states)[:, 0]
    chosen = torch.distributions.Categorical(logits=policy(states)).log_prob(actions)
    loss = -(chosen * gain.detach()).mean() + gain.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CLOSURE = """
model = nn.Linear(8, 4)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
x = torch.randn(16, 8)
def closure():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss
for _ in range(8):
    optimizer.step(closure)
"""
META_LEARNING = """
from torch.func import functional_call
model = nn.Linear(8, 8)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(8):
    weights = dict(model.named_parameters())
    for _ in range(2):
        loss = functional_call(model, weights, torch.randn(4, 8)).square().mean()
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {name: weight - 0.1 * one for (name, weight), one in zip(weights.items(), gradients)}
    optimizer.zero_grad()
    functional_call(model, weights, torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
TWO_GROUPS = """
words, head = nn.Embedding(10, 8, sparse=True), nn.Linear(8, 4)
optimizers = [torch.optim.SparseAdam(words.parameters()), torch.optim.Adam(head.parameters())]
for _ in range(8):
    head(words(torch.randint(10, (4,)))).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
"""
LAZY_AND_CHECKED = """
model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 4))
model(torch.randn(1, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.no_grad():
    for _ in range(2):
        model(torch.randn(4, 8))
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
LAZY_PARTS = """
class Parts(nn.ModuleList):
    def forward(self, x, part):
        return self[part](x)
model = Parts(nn.LazyLinear(4) for _ in range(3))
with torch.no_grad():
    for part in range(3):
        model(torch.randn(1, 8), part)
"""
LAZY_TRIED = (
    LAZY_PARTS
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    optimizer.zero_grad()
    model(torch.randn(4, 8), number % 3).square().mean().backward()
    optimizer.step()
"""
)
LAZY_INFERENCE = (
    LAZY_PARTS
    + """
    for number in range(5):
        model(torch.randn(4, 8), number % 3)
"""
)
FOLDS = """
for _ in range(2):
    model = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        model(torch.randn(4, 8))
"""
EXPONENTIAL_AVERAGE = """
import copy
student = nn.Linear(8, 4)
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.AdamW(student.parameters())
for _ in range(8):
    x = torch.randn(4, 8)
    loss = (student(x) - teacher(x + 0.1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mean, weight in zip(teacher.parameters(), student.parameters()):
            mean.lerp_(weight, 0.1)
"""
ENSEMBLE = """
models = [nn.Linear(8, 4).eval() for _ in range(3)]
criterion = nn.CrossEntropyLoss()
with torch.inference_mode():
    for _ in range(8):
        x, y = torch.randn(4, 8), torch.randint(4, (4,))
        mean = torch.stack([model(x).softmax(-1) for model in models]).mean(0)
        criterion(mean.log(), y).item()
"""
FROZEN_THEN_WHOLE = """
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
head = torch.optim.Adam(model[2].parameters())
whole = torch.optim.Adam(model.parameters())
for optimizer, count in ((head, 3), (whole, 16)):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
"""
MANY_CRITIC_STEPS = """
generator, critic = nn.Linear(8, 16), nn.Linear(16, 1)
first, second = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
for _ in range(8):
    (-critic(generator(torch.randn(4, 8))).mean()).backward()
    first.step()
    for _ in range(5):
        second.zero_grad()
        (critic(torch.randn(4, 16)).mean() - critic(generator(torch.randn(4, 8)).detach()).mean()).backward()
        second.step()
"""
IN_THREAD = (
    """
import threading
def train():
"""
    + "\n".join(f"    {line}" for line in WEIGHT_NORM.splitlines())
    + """
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""
)
COMPILED_HELPER = """
scaled = torch.compile(lambda x: x * 2, backend="eager")
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    x = scaled(scaled(torch.randn(4, 8)))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
HELPER = "a compiled helper"
"""Its backend reports no modules, which a note says."""
FURTHER_MODELS = "a new model and optimizer for each fold"
PROGRAMS = {
    "a GAN": GAN,
    "a GAN that calls its critic first": GAN_CRITIC_FIRST,
    "parametrizations": WEIGHT_NORM,
    "a teacher and a student": TEACHER,
    "validation after every second step": VALIDATION,
    "four batches a step": ACCUMULATION,
    "a retriever and a reader": RETRIEVER,
    "helpers before the training": HELPERS_BEFORE,
    "rollouts of a policy before each update": REINFORCEMENT,
    "a closure that is called several times": CLOSURE,
    "an inner loop of updates by hand": META_LEARNING,
    "an optimizer for each group of weights": TWO_GROUPS,
    "a lazy model, and validation before the training": LAZY_AND_CHECKED,
    "a lazy model of which each part is tried": LAZY_TRIED,
    FURTHER_MODELS: FOLDS,
    "a teacher that averages the student": EXPONENTIAL_AVERAGE,
    "five steps of the critic for one of the generator": MANY_CRITIC_STEPS,
    "a training in another thread": IN_THREAD,
    HELPER: COMPILED_HELPER,
}
QUANTIZED = """
import warnings
warnings.simplefilter("ignore")
whole = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
model = torch.ao.quantization.quantize_dynamic(whole, {nn.Linear})
with torch.no_grad():
    for _ in range(8):
        model(torch.randn(4, 8))
"""
MODELS_IN_TURN = """
with torch.no_grad():
    for _ in range(4):
        model = nn.Linear(8, 8)
        for _ in range(2):
            model(torch.randn(4, 8))
"""
PLAIN_TENSOR = """
class Filter(nn.Module):
    def __init__(self):
        super().__init__()
        self.taps = torch.randn(8, 8)
    def forward(self, x):
        return x @ self.taps
model = Filter()
for _ in range(8):
    model(torch.randn(4, 8))
"""
CALLS = {
    "inference": INFERENCE,
    "inference with gradients": WITH_GRADIENTS,
    "inference with parametrizations": CONSTRAINED_INFERENCE,
    "a part called before": PART_CALLED_BEFORE,
    "updates by hand": AUTOGRAD_GRAD,
    "an ensemble, and a loss for its evaluation": ENSEMBLE,
    "a draft model and a target model": SPECULATIVE,
    "an encoder that prepares the data": PREPARED,
    "a pipeline": PIPELINE,
    "a pipeline with gradients": PIPELINE.replace("with torch.no_grad():", "if True:"),
    "inference with a lazy model": LAZY_INFERENCE,
    "generate": GENERATE_DIRECTLY,
    "generate with a call bound before its loop": GENERATE,
    "generate with the class's call bound": GENERATE_BY_CLASS,
    "the class's call replaced": CALL_REPLACED,
    "a quantized model": QUANTIZED,
    "several models, one after the other": MODELS_IN_TURN,
    "weights that are not registered": PLAIN_TENSOR,
}
COMPILED_STEP = """
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
@torch.compile(backend="eager")
def step(x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
for number in range(8):
    step(torch.randn(4, 8))
    if number % 2:
        with torch.no_grad():
            for _ in range(5):
                model(torch.randn(4, 8))
"""
COMPILED_PARTS = """
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
@torch.compile(backend="eager")
def loss_of(x):
    return model(x).square().mean()
@torch.compile(backend="eager")
def update():
    optimizer.step()
    optimizer.zero_grad()
for _ in range(8):
    loss_of(torch.randn(4, 8)).backward()
    update()
"""
COMPILED_FUNCTION = """
from torch.func import functional_call, grad
model = nn.Linear(8, 4)
weights = {name: weight.detach() for name, weight in model.named_parameters()}
def loss_of(weights, x):
    return functional_call(model, weights, (x,)).square().mean()
@torch.compile(backend="eager")
def step(weights, x):
    gradients = grad(loss_of)(weights, x)
    return {name: weight - 0.1 * gradients[name] for name, weight in weights.items()}
for _ in range(8):
    weights = step(weights, torch.randn(4, 8))
"""
COMPILED_INFERENCE = """
model = nn.Linear(8, 4)
answer = torch.compile(lambda x: model(x).argmax(-1), backend="eager")
with torch.inference_mode():
    for _ in range(8):
        answer(torch.randn(4, 8))
"""
COMPILED_DIRECTION = """
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
@torch.compile(backend="eager")
def direction(gradient):
    return gradient / gradient.norm()
for _ in range(8):
    model(torch.randn(4, 8)).square().mean().backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight.sub_(0.1 * direction(weight.grad))
            weight.grad = None
"""
COMPILED_AFTER_A_CALL = """
model = nn.Linear(8, 4)
model(torch.randn(4, 8))
@torch.compile(backend="eager")
def step(x):
    model(x).square().mean().backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight.sub_(0.1 * weight.grad)
            weight.grad.zero_()
for _ in range(8):
    step(torch.randn(4, 8))
"""
COMPILED = {
    "the direction of an update by hand": COMPILED_DIRECTION,
    "a step by hand, after a call that finds out a size": COMPILED_AFTER_A_CALL,
    "forward, backward and update, with validation": COMPILED_STEP,
    "a loss and an update": COMPILED_PARTS,
    "a function of weights": COMPILED_FUNCTION,
    "inference": COMPILED_INFERENCE,
}
"""Programs without a call of a module and without a hook of an optimizer that are seen."""
TWO_AND_VALIDATION = VALIDATION.replace("range(8)", "range(2)")
MARKED = VALIDATION + "    gpuledger.step()\n"


def kinds_of(directory: Path, source: str, *options: str) -> list[str]:
    """Return the kinds of the steps that a recording of a program has."""
    write_script(directory, HEAD + source)
    ended = recorded(["train.py"], directory, ("-q", "--passes", "memory", *options))
    assert ended.status == 0, ended.stderr
    return [row["kind"] for row in load(directory / "train.ledger").rank(0).table("steps").to_pylist()]


def notes_of(directory: Path) -> tuple[str, ...]:
    return load(directory / "train.ledger").rank(0).manifest.notes


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_are_the_programs_iterations(name: str, tmp_path: Path) -> None:
    assert kinds_of(tmp_path, PROGRAMS[name]) == ["optimizer"] * ITERATIONS
    assert bool(notes_of(tmp_path)) == (name in (FURTHER_MODELS, HELPER))


def test_no_call_between_a_new_optimizer_and_its_first_step_is_a_step(tmp_path: Path) -> None:
    assert kinds_of(tmp_path, PREDICTIONS_BEFORE) == ["call", *["optimizer"] * ITERATIONS]


def test_the_step_with_which_another_training_begins_is_known(tmp_path: Path) -> None:
    trained = TEACHER.replace("teacher, student = nn.Linear(8, 4).eval(), nn.Linear(8, 4)", "student = make()")
    trained = trained.replace("        wanted = teacher(x)", "        wanted = x[:, :4]")
    larger = "make = lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))"
    kinds_of(tmp_path, "make = lambda: nn.Linear(8, 4)" + trained + larger + trained)
    assert load(tmp_path / "train.ledger").rank(0).manifest.trainings == ((1, 0), (9, 1))


@pytest.mark.parametrize("name", CALLS)
def test_without_an_optimizer_steps_are_calls(name: str, tmp_path: Path) -> None:
    assert kinds_of(tmp_path, CALLS[name]) == ["call"] * ITERATIONS
    assert notes_of(tmp_path) == ()


@pytest.mark.parametrize("name", COMPILED)
def test_steps_of_a_compiled_program_are_those_of_its_optimizer_or_its_calls(name: str, tmp_path: Path) -> None:
    kind = "optimizer" if "optimizer.step()" in COMPILED[name] else "call"
    assert kinds_of(tmp_path, COMPILED[name]) == [kind] * ITERATIONS
    assert notes_of(tmp_path) == (FUNCTIONS_WITHOUT_MODULES,)


def test_the_memory_of_a_target_model_is_recorded_and_not_only_that_of_its_draft_model(tmp_path: Path) -> None:
    kinds_of(tmp_path, SPECULATIVE)
    found = read_recorded(load(tmp_path / "train.ledger").rank(0))
    assert {block.module for block in found.blocks if block.phase == "evaluation"} == {
        "draft",
        "Sequential.0",
        "Sequential.1",
    }


def test_calls_beside_a_larger_model_that_is_never_called_are_steps(tmp_path: Path) -> None:
    idle = PREPARED.partition("    for number")[0].replace("range(3)", "range(4)")
    assert kinds_of(tmp_path, idle) == ["call"] * 4


LATE_STEPS = """
import torch
from torch import nn
first, never_called = nn.Linear(4, 4), nn.Linear(4, 4)
with torch.no_grad():
    for size in range(1, CALLS + 1):
        first(torch.ones(size, 4))
"""


@pytest.mark.parametrize("calls", [5, 20])
def test_steps_that_were_counted_later_have_their_memory(calls: int, tmp_path: Path) -> None:
    """Another model could be trained, so that the first 16 calls are held back."""
    assert kinds_of(tmp_path, LATE_STEPS.replace("CALLS", str(calls))) == ["call"] * calls
    found = read_recorded(load(tmp_path / "train.ledger").rank(0))
    last = min(calls, 17)
    inputs = {block.step or 1: block.bytes for block in found.blocks if block.category == "input"}  # 0: before a call
    assert inputs == {step: 16 * step for step in range(1, last + 1)}
    indices = [(row["start_index"], row["end_index"]) for row in found.tables["steps"] if row["recorded"]]
    assert len(indices) == last
    assert all(end + 1 == start for (_, end), (start, _) in pairwise(indices))


def test_a_denoiser_called_after_the_encoder_is_followed(tmp_path: Path) -> None:
    once = PIPELINE.replace("range(8)", "range(1)").replace("range(3)", "range(17)")
    assert len(kinds_of(tmp_path, once)) == 1 + 17 - SWITCH_CALLS


def test_an_optimizer_that_takes_over_is_followed(tmp_path: Path) -> None:
    assert len(kinds_of(tmp_path, FROZEN_THEN_WHOLE)) == 3 + 16 - SWITCH_STEPS


def test_every_token_of_transformers_is_a_step(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    assert kinds_of(tmp_path, TRANSFORMERS) == ["call"] * ITERATIONS


@pytest.mark.parametrize(
    ("step_on", "source", "kinds"),
    [
        ("optimizer", ACCUMULATION, ["optimizer"] * 8),
        ("module", ACCUMULATION.replace("32", "12"), ["call"] * 12),
        ("module", TWO_AND_VALIDATION, ["call"] * (2 + 5)),
        ("optimizer", INFERENCE, []),
        ("call:Dropout", TWO_AND_VALIDATION, ["call"] * (2 + 5)),
        ("call:2", TWO_AND_VALIDATION, ["call"] * (2 + 5)),
        ("call:Sequential", INFERENCE.replace("nn.Linear(8, 4)", "nn.Sequential(nn.Linear(8, 4))"), ["call"] * 8),
        ("mark", "import gpuledger" + MARKED, ["marked"] * 8),
        ("optimizer", "import gpuledger" + MARKED, ["optimizer"] * 8),
        ("auto", "import gpuledger" + MARKED, ["optimizer"] + ["marked"] * 7),
    ],
)
def test_the_user_selects_what_a_step_is(step_on: str, source: str, kinds: list[str], tmp_path: Path) -> None:
    assert kinds_of(tmp_path, source, "--step-on", step_on) == kinds


@pytest.mark.parametrize(
    ("step_on", "note"),
    [
        ("call:Lineer", "no module has the path or class Lineer. Similar names: Linear."),
        ("call:zzz", "no module has the path or class zzz."),
        ("mark", "the program did not call gpuledger.step()."),
    ],
)
def test_a_run_without_steps_says_why_and_keeps_its_memory(step_on: str, note: str, tmp_path: Path) -> None:
    assert kinds_of(tmp_path, VALIDATION, "--step-on", step_on) == []
    assert notes_of(tmp_path) == (f"No step was counted: {note}",)
    assert summarize(load(tmp_path / "train.ledger").rank(0)).peak_allocated_bytes > 0


def test_an_optimizer_after_the_recorded_steps_is_noted_on_the_cpu(tmp_path: Path) -> None:
    """The peak of its training is not known. An optimizer that the recorded steps have is not noted."""
    kinds_of(tmp_path, FOLDS)
    assert notes_of(tmp_path) == (
        "Another optimizer took its first step in step 5, after the recorded steps. "
        "The peak of the program can be higher than shown. "
        "Use --steps 5:7 to record the memory of that training by module.",
    )


def test_calls_before_the_training_are_named(tmp_path: Path) -> None:
    before = "first = nn.Linear(8, 8).eval()\nwith torch.no_grad():\n    first(torch.randn(4, 8))\n"
    assert kinds_of(tmp_path, before + ACCUMULATION) == ["call"] + ["optimizer"] * 8
    assert notes_of(tmp_path) == (
        "Step 1 is a call of a module before the training. "
        "Use --step-on optimizer to count only steps of the optimizer.",
    )
    again = tmp_path / "again"
    again.mkdir()
    assert kinds_of(again, before + ACCUMULATION, "--step-on", "optimizer") == ["optimizer"] * 8


def test_an_optimizer_that_never_steps_is_named(tmp_path: Path) -> None:
    assert kinds_of(tmp_path, "weights = torch.optim.SGD([torch.ones(1)])\n" + INFERENCE) == []
    assert notes_of(tmp_path) == (
        "No step was counted: no step of an optimizer was seen. Use --step-on module to count calls of the model.",
    )


def test_an_unknown_kind_of_step_is_refused_before_the_program(tmp_path: Path) -> None:
    write_script(tmp_path, "print('began')")
    ended = recorded(["train.py"], tmp_path, ("-q", "--step-on", "epoch"))
    assert ended.status == 2
    assert b"step-on 'epoch': expected auto, module, optimizer, mark or call:NAME" in ended.stderr
    assert ended.stdout == b""


ENDS = """
import os, sys
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 4), 0
    def forward(self, x):
        self.calls += 1
        if self.calls == 5:
            END
        return self.layer(x)
model = Model()
with torch.no_grad():
    for _ in range(8):
        model(torch.randn(4, 8))
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [("raise ValueError", 1), ("sys.exit(7)", 7), ("os.fork() or os._exit(0)", 0), ("os._exit(3)", 3)],
)
@pytest.mark.parametrize("step_on", ["module", "call:layer"])
def test_a_program_that_ends_inside_a_call_keeps_its_status_and_its_steps(
    step_on: str, end: str, status: int, tmp_path: Path
) -> None:
    write_script(tmp_path, HEAD + ENDS.replace("END", end))
    ended = recorded(["train.py"], tmp_path, ("-q", "--passes", "memory,time", "--step-on", step_on))
    assert ended.status == status, ended.stderr
    assert b"gpuledger" not in ended.stderr
    assert load(tmp_path / "train.ledger").rank(0).table("steps").num_rows >= 3
