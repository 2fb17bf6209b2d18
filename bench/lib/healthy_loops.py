"""Small trainings with epochs, evaluations and buffers that fill, and no leak, for bench/memory/leaks.py."""

from __future__ import annotations

import copy
import functools
import heapq
import math
import random
import tempfile
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from healthy_programs import healthy
from leaking_loops import EPOCH_STEPS, EPOCHS, SMALL, evaluate, train
from leaking_programs import ROWS, STEPS, WIDTH, MeanMetric, Training, block
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset[Tensor]):
    """Random rows."""

    def __len__(self) -> int:
        return 16 * EPOCH_STEPS

    def __getitem__(self, place: int) -> Tensor:
        return torch.full((WIDTH,), float(place))


class Scalars:
    """A writer of scalars, as TensorBoard's, that writes 120 at a time."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.waiting = stream, list[tuple[str, float, int]]()

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Add an event."""
        self.waiting.append((tag, value, step))
        if len(self.waiting) >= 120:
            self.stream.writelines(f"{event}\n" for event in self.waiting)
            self.waiting.clear()


class Stopping:
    """Keeps the best weights, and says when to stop."""

    def __init__(self) -> None:
        self.lowest, self.best, self.bad_epochs = math.inf, dict[str, Tensor](), 0

    def update(self, loss: float, model: nn.Module) -> bool:
        """Return whether to stop."""
        self.bad_epochs += 1
        if loss < self.lowest:
            self.lowest, self.bad_epochs = loss, 0
            self.best = copy.deepcopy(model.state_dict())
        return self.bad_epochs > EPOCHS


@healthy
def masks_by_length() -> None:
    """A cache of masks has one for each of 40 lengths, and rare lengths come late."""
    training, lengths, masks = Training(), random.Random(11), dict[int, Tensor]()
    for _ in range(2 * STEPS):
        training.step()
        length = min(int(lengths.expovariate(0.12)), 39)
        masks.setdefault(length, torch.rand(64 + length, SMALL))


@healthy
def large_cache_that_fills() -> None:
    """A function keeps its last 128 results, and fills them for most of the training."""
    training = Training()
    encode = functools.lru_cache(maxsize=128)(lambda _number: block())
    for number in range(3 * STEPS // 2):
        training.step()
        encode(number)


@healthy
def replay_in_a_deque() -> None:
    """A replay buffer with a limit is not full when the training ends."""
    training, memory = Training(), deque[tuple[Tensor, float]](maxlen=500)
    for _ in range(2 * STEPS):
        memory.append((torch.rand(16 * SMALL), 0.5))
        training.step()


@healthy
def replay_in_an_array() -> None:
    """A replay buffer is one array of zeros that is filled row by row until the end of the training."""
    training, memory = Training(), np.zeros((4 * STEPS, 16 * SMALL), np.float32)
    for number in range(3 * STEPS):
        memory[number] = 1.0
        training.step()


@healthy
def replay_in_a_tensor() -> None:
    """A replay buffer is one tensor that is filled row by row for most of the training."""
    training, memory = Training(), torch.empty(STEPS, 16 * SMALL)
    for number in range(5 * STEPS // 4):
        memory[number % STEPS] = 1.0
        training.step()


@healthy
def data_set_of_a_mapped_file() -> None:
    """Rows of a mapped file are read for the first time until the end of the training."""
    training = Training()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows"
        np.ones((2 * STEPS, 16 * SMALL), np.float32).tofile(path)
        rows = np.memmap(path, np.float32, "r", shape=(2 * STEPS, 16 * SMALL))
        for number in range(2 * STEPS):
            training.step(ROWS + int(rows[number].mean()))


@healthy
def tokens_of_the_first_epoch() -> None:
    """Items are kept when they are read first; the first epoch is two thirds of the training."""
    training, items = Training(), dict[int, Tensor]()
    for number in range(3 * STEPS // 2):
        training.step()
        items.setdefault(number % STEPS, torch.rand(32 * SMALL))


@healthy
def longer_sequences_by_epoch() -> None:
    """Sequences become longer with each epoch, and so do the outputs of a validation."""
    training = Training()
    for epoch in range(EPOCHS):
        for _ in range(EPOCH_STEPS):
            training.step(ROWS * (1 + epoch))
        with torch.no_grad():
            outputs = [training.model(torch.randn(ROWS * (1 + epoch), WIDTH)) for _ in range(EPOCH_STEPS)]
        torch.cat(outputs).mean()


@healthy
def predictions_of_one_evaluation() -> None:
    """The predictions of an evaluation are a list that begins again at the next one."""
    training = Training()
    for _ in range(EPOCHS):
        train(training)
        predictions = list(evaluate(training))
        torch.cat(predictions).mean()


@healthy
def predictions_of_the_test() -> None:
    """After the training, the predictions of all batches of a test are collected and joined."""
    training, predictions = Training(), []
    train(training, 2 * STEPS)
    predictions.extend(evaluate(training, STEPS))
    print(torch.cat(predictions).mean())


@healthy
def ragged_validation() -> None:
    """Validations have random lengths, and their outputs are kept until the next one."""
    training, lengths = Training(), random.Random(17)
    for _ in range(EPOCHS):
        train(training)
        outputs = list(evaluate(training, lengths.randrange(2, 30)))
        print(len(outputs))


@healthy
def metrics_of_an_epoch() -> None:
    """Metrics of an epoch are collected in a list, and the list is emptied at the end of the epoch."""
    training, metrics, history = Training(), list[Tensor](), defaultdict[str, list[float]](list)
    for _ in range(EPOCHS):
        metrics.extend(training.step()[0].detach().softmax(1) for _ in range(EPOCH_STEPS))
        history["mean"].append(torch.stack(metrics).mean().item())
        metrics = []


@healthy
def metric_with_a_reset() -> None:
    """A metric keeps outputs in training and in validation; it is reset after each validation."""
    training, metric = Training(), MeanMetric()
    for _ in range(EPOCHS):
        for _ in range(EPOCH_STEPS):
            metric.update(training.step()[0].detach())
        for output in evaluate(training, 5):
            metric.update(output)
        print(torch.cat(metric.values).mean())
        metric.values.clear()


@healthy
def floats_of_every_step() -> None:
    """A list has a dict of eight floats for each step."""
    training, history = Training(), []
    for number in range(4 * STEPS):
        loss = training.step(32)[1].item()
        history.append({f"metric {place}": loss * place for place in range(8)} | {"step": number})


@healthy
def losses_of_every_step() -> None:
    """A list has a detached loss and a norm of each step."""
    training, history = Training(), []
    for _ in range(4 * STEPS):
        loss = training.step(32)[1]
        history.append((loss.detach(), nn.utils.get_total_norm(list(training.model.parameters())).detach()))


@healthy
def scalars_of_a_writer() -> None:
    """A writer keeps scalars and writes them now and then."""
    training = Training()
    with tempfile.TemporaryFile("w") as stream:
        writer = Scalars(stream)
        for number in range(4 * STEPS):
            loss = training.step(32)[1].item()
            for place in range(4):
                writer.add_scalar(f"loss/{place}", loss, number)


@healthy
def matrices_of_epochs() -> None:
    """A list has a matrix of 64 numbers, a loss and a rate of each epoch."""
    training, history = Training(), []
    for _ in range(2 * EPOCHS):
        train(training, 5)
        matrix = sum((output[:8, :8] for output in evaluate(training, 3)), torch.zeros(8, 8))
        history.append((matrix, 0.5, 0.001))


@healthy
def words_of_the_first_epochs() -> None:
    """The table of an embedding becomes larger in the first seven epochs, and gets a new optimizer then."""
    table = nn.Embedding(200, WIDTH)
    for epoch in range(2 * EPOCHS):
        if 0 < epoch < 7:
            larger = nn.Embedding(table.num_embeddings + 400, WIDTH)
            with torch.no_grad():
                larger.weight[: table.num_embeddings] = table.weight
            table = larger
        optimizer = torch.optim.Adam(table.parameters())
        for _ in range(8):
            optimizer.zero_grad()
            table(torch.randint(table.num_embeddings, (ROWS,))).square().mean().backward()
            optimizer.step()


@healthy
def state_of_an_optimizer_for_rare_rows() -> None:
    """An optimizer makes the state of 40 tables when they have their first gradients, up to three in four steps."""
    tables = [nn.Parameter(torch.rand(SMALL, 16)) for _ in range(40)]
    optimizer = torch.optim.Adam(tables)
    for number in range(3 * STEPS // 2):
        optimizer.zero_grad(set_to_none=True)
        tables[min(number * 3 // 8, 39)].square().mean().backward()
        optimizer.step()


@healthy
def history_of_lbfgs() -> None:
    """L-BFGS keeps the last 60 directions."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.02, max_iter=1, history_size=60)
    inputs, wanted = torch.randn(ROWS, WIDTH), torch.randn(ROWS, 1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(inputs) - wanted).square().mean()
        loss.backward()
        return loss

    for _ in range(3 * STEPS // 2):
        optimizer.step(closure)


@healthy
def workers_of_a_loader() -> None:
    """Two workers prepare batches; they begin again in each epoch."""
    training = Training()
    for _ in range(EPOCHS // 2):
        for batch in DataLoader(Numbers(), batch_size=16, num_workers=2, prefetch_factor=4):
            training.step(len(batch))


@healthy
def folds() -> None:
    """Each of six folds has a model of its own, and a list keeps the scores."""
    scores = []
    for _ in range(6):
        training = Training()
        train(training, 2 * EPOCH_STEPS)
        scores.append(sum(output.mean().item() for output in evaluate(training)))


@healthy
def early_stopping() -> None:
    """The best weights are kept by an object; losses of epochs are floats."""
    training, stopping = Training(), Stopping()
    for _ in range(2 * EPOCHS):
        train(training, 6)
        loss = sum(output.square().mean().item() for output in evaluate(training, 4))
        if stopping.update(loss, training.model):
            break


@healthy
def windows_of_a_median() -> None:
    """Windows of 50 outputs are kept by name."""
    training = Training()
    windows = defaultdict[str, deque[Tensor]](lambda: deque(maxlen=50))
    for number in range(2 * STEPS):
        windows[f"loss {number % 2}"].append(training.step(2 * ROWS)[0].detach())


@healthy
def hardest_examples() -> None:
    """A heap keeps the 40 hardest examples so far."""
    training, draws = Training(), random.Random(7)
    hardest: list[tuple[float, int, Tensor]] = []
    for number in range(2 * STEPS):
        training.step()
        example = (draws.random(), number, torch.rand(8 * SMALL))
        (heapq.heappush if len(hardest) < 40 else heapq.heappushpop)(hardest, example)


@healthy
def decoding_in_validations() -> None:
    """A validation decodes with a cache of keys that becomes longer, and is dropped after each text."""
    training = Training()
    for _ in range(EPOCHS):
        train(training)
        training.model.eval()
        with torch.no_grad():
            for _ in range(3):
                keys = torch.empty(0, WIDTH)
                for _ in range(20):
                    keys = torch.cat([keys, training.model(torch.randn(ROWS, WIDTH))])
        training.model.train()


@healthy
def average_that_begins_late() -> None:
    """An average of the weights begins after three quarters of the training."""
    training = Training()
    average = torch.optim.swa_utils.AveragedModel(training.model)
    for epoch in range(EPOCHS):
        train(training)
        if epoch == 9:
            average = torch.optim.swa_utils.AveragedModel(training.model)
        if epoch > 9:
            average.update_parameters(training.model)


@healthy
def layers_of_the_first_epochs() -> None:
    """A progressive model becomes deeper in the first six epochs."""
    layers = [nn.Linear(WIDTH, WIDTH)]
    for epoch in range(EPOCHS):
        if epoch < 6:
            layers.append(nn.Linear(WIDTH, WIDTH))
        model = nn.Sequential(*layers)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(EPOCH_STEPS):
            optimizer.zero_grad()
            model(torch.randn(ROWS, WIDTH)).square().mean().backward()
            optimizer.step()


@healthy
def pool_of_images() -> None:
    """A pool of 50 generated images; each new one replaces another at random, as CycleGAN does."""
    training, pool, draws = Training(), list[Tensor](), random.Random(1)
    for _ in range(2 * STEPS):
        image = training.step()[0].detach()
        if len(pool) < 50:
            pool.append(image)
        elif draws.random() > 0.5:
            pool[draws.randrange(50)] = image


@healthy
def accumulation_with_validation() -> None:
    """Eight backward passes lead to one update, and every fifth update is followed by a validation."""
    training = Training()
    for number in range(STEPS // 2):
        for _ in range(7):
            training.model(torch.randn(64, WIDTH)).square().mean().backward()
        training.step(64)
        if number % 5 == 4:
            losses = [output.square().mean().item() for output in evaluate(training)]
            print(sum(losses))
