"""Small trainings whose memory grows slowly, or only from epoch to epoch, for bench/memory/leaks.py."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from leaking_programs import ROWS, STEPS, WIDTH, Training, Writer, block, leak
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

EPOCHS = 12
EPOCH_STEPS = 10
SMALL = 4096
"""Numbers in what the slow programs keep of each step: 16 KiB."""


def evaluate(training: Training, batches: int = EPOCH_STEPS) -> Iterator[Tensor]:
    """Yield the outputs of an evaluation: 256 KiB each."""
    training.model.eval()
    with torch.no_grad():
        for _ in range(batches):
            yield training.model(torch.randn(2 * ROWS, WIDTH))
    training.model.train()


def train(training: Training, steps: int = EPOCH_STEPS) -> None:
    """Train an epoch."""
    for _ in range(steps):
        training.step()


class Images(Dataset[Tensor]):
    """Keeps each augmented image under a key that never comes again."""

    def __init__(self) -> None:
        self.augmented: dict[tuple[int, int], Tensor] = {}
        self.draws = itertools.count()

    def __len__(self) -> int:
        return 16 * EPOCH_STEPS

    def __getitem__(self, place: int) -> Tensor:
        key = (place, next(self.draws))
        self.augmented[key] = torch.rand(10, WIDTH)
        return self.augmented[key][0]


class Decoder(nn.Module):
    """Keeps the keys of all that it has decoded."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.past: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the projected inputs; without gradients, remember them."""
        output: Tensor = self.project(inputs)
        if not torch.is_grad_enabled():
            self.past.append(output)
        return output


@leak("predictions")
def predictions_of_evaluations() -> None:
    """A list keeps the predictions of the evaluations of all epochs."""
    training, predictions = Training(), []
    for _ in range(EPOCHS):
        train(training)
        predictions.extend(evaluate(training))


@leak("by_epoch")
def joined_predictions_by_epoch() -> None:
    """A dict keeps the joined predictions of every epoch."""
    training, by_epoch = Training(), {}
    for epoch in range(EPOCHS):
        train(training)
        by_epoch[epoch] = torch.cat(list(evaluate(training)))


@leak("logits")
def arrays_of_evaluations() -> None:
    """A list keeps the logits of all evaluations as arrays of NumPy."""
    training, logits = Training(), []
    for _ in range(EPOCHS):
        train(training)
        logits.extend(output.numpy() for output in evaluate(training))


@leak("undo")
def closures_of_16_kib() -> None:
    """A list of functions keeps 16 KiB of each step."""
    training, undo = Training(), []

    def remember() -> Callable[[], Tensor]:
        mask = torch.rand(SMALL)
        return lambda: mask

    for _ in range(2 * STEPS):
        training.step()
        undo.append(remember())


@leak("schedule")
def chain_of_closures() -> None:
    """Each function calls the one before, and has 16 KiB of its own."""
    training = Training()

    def after(before: Callable[[], float], weights: Tensor) -> Callable[[], float]:
        return lambda: before() + float(weights[0])

    schedule: Callable[[], float] = float
    for _ in range(3 * STEPS):
        training.step()
        schedule = after(schedule, torch.rand(SMALL))


@leak("transitions")
def transitions_without_a_limit() -> None:
    """A list keeps the transitions of an agent: 20 KiB of each step."""
    training, transitions = Training(), list[dict[str, Any]]()
    for number in range(4 * STEPS):
        training.step(32)
        state = np.random.default_rng(number).random((5, 512))
        transitions.append({"state": state, "action": number % 4, "reward": 0.5, "done": False})


@leak("lines")
def lines_of_a_log() -> None:
    """A list keeps a text of each step: 24 KiB."""
    training, lines = Training(), []
    for number in range(3 * STEPS):
        training.step()
        lines.append(f"{number} " * 8192)


@leak("metrics")
def metrics_that_are_never_emptied() -> None:
    """A list of an epoch's metrics is read at each end of an epoch, and never emptied."""
    training, metrics = Training(), []
    for _ in range(EPOCHS):
        metrics.extend(training.step()[0].detach().softmax(1) for _ in range(EPOCH_STEPS))
        print(torch.stack(metrics).mean())


@leak("states")
def states_of_epochs() -> None:
    """A list keeps the weights and the optimizer's state of every epoch."""
    training, states = Training(), []
    for _ in range(2 * EPOCHS):
        train(training, 6)
        states.append(copy.deepcopy((training.model.state_dict(), training.optimizer.state_dict())))


@leak("_forward_hooks", "kept")
def hooks_of_evaluations() -> None:
    """Each evaluation registers a hook that keeps features, and removes none."""
    training = Training()
    for _ in range(EPOCHS):
        train(training)
        features: list[Tensor] = []
        training.model[0].register_forward_hook(
            lambda module, _inputs, output, kept=features: None if module.training else kept.append(output)
        )
        for _ in evaluate(training, 3):
            pass


@leak("events")
def images_of_a_writer() -> None:
    """A writer keeps the pictures of each validation."""
    training, writer = Training(), Writer()
    for epoch in range(2 * EPOCHS):
        train(training, 5)
        for output in evaluate(training, 4):
            writer.add_histogram("picture", output, epoch)


@leak("past")
def keys_of_all_decoded() -> None:
    """A module keeps the keys of what it decodes in validations, and nobody clears them."""
    training = Training()
    training.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Decoder())
    training.optimizer = torch.optim.SGD(training.model.parameters(), 0.01)
    for _ in range(EPOCHS):
        train(training)
        for _ in evaluate(training):
            pass


@leak("trials")
def trainings_of_a_search() -> None:
    """A list keeps the model and the optimizer of each trial of a search."""
    trials = []
    for _ in range(EPOCHS):
        trials.append(Training())
        train(trials[-1], 12)


@leak("trials")
def short_trainings_of_a_search() -> None:
    """A list keeps the model and the optimizer of each trial of a search, and a trial has six steps."""
    trials = []
    for _ in range(2 * EPOCHS):
        trials.append(Training())
        train(trials[-1], 6)


@leak("total")
def total_of_validation_losses() -> None:
    """The total of the validations' losses keeps their graphs."""
    training, total = Training(), torch.zeros(())
    for _ in range(EPOCHS):
        train(training)
        training.model.eval()
        for _ in range(EPOCH_STEPS):
            total = total + training.model(torch.randn(2 * ROWS, WIDTH)).square().mean()
        training.model.train()
    print(total.item())


@leak("augmented")
def images_of_a_data_set() -> None:
    """A data set keeps what it has augmented, under keys that never come again."""
    training, images = Training(), Images()
    for _ in range(EPOCHS):
        for batch in DataLoader(images, batch_size=16, shuffle=True):
            training.step(len(batch))


@leak("table")
def table_of_new_words() -> None:
    """Every step has 16 new words, and a table of vectors becomes longer."""
    training, table = Training(), torch.empty(0, WIDTH)
    for _ in range(4 * STEPS):
        training.step()
        table = torch.cat([table, torch.rand(16, WIDTH)])


@leak("saved")
def gradients_of_updates() -> None:
    """A list keeps the gradients of each update, of which there is one in four steps."""
    training, saved = Training(), []
    for _ in range(STEPS // 2):
        for _ in range(3):
            training.model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        training.step()
        saved.append([weight.grad.clone() for weight in training.model.parameters() if weight.grad is not None])


@leak("failures")
def failures_of_evaluations() -> None:
    """A list keeps the errors of evaluations, and these keep the frames with their outputs."""
    training, failures = Training(), []

    def compare(outputs: list[Tensor]) -> None:
        raise ValueError(f"{len(outputs)} outputs, and no labels")

    for _ in range(2 * EPOCHS):
        train(training, 5)
        try:
            compare([block(), *evaluate(training, 4)])
        except ValueError as error:
            failures.append(error)
