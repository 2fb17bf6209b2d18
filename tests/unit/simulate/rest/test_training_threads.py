"""A thread that trains by itself is simulated where it is started; one that waits for others is not."""

from __future__ import annotations

import queue
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from loop_programs import estimate_of

from gpuledger.simulate.rest.training_threads import trains_alone

pytestmark = pytest.mark.torch
FULL, ENDLESS, RESULTS = queue.Queue[int](maxsize=2), queue.SimpleQueue[int](), queue.Queue[int]()
READY = threading.Event()


class Trainer:
    def __init__(self, **has: Any) -> None:
        self.loss: Any = None
        self.has = has

    def step(self) -> None:
        self.loss.backward()

    def train(self, *_given: object) -> None:
        self.step()

    def train_as_told(self, orders: Any) -> None:
        orders.get()
        self.step()

    def train_when_ready(self) -> None:
        READY.wait()
        self.step()

    def look(self) -> Any:
        return self.loss


class TrainingThread(threading.Thread):
    def run(self) -> None:
        Trainer().step()


def train_and_tell() -> None:
    (lambda trainer: trainer.train())(TRAINER)
    RESULTS.put(1)


TRAINER = Trainer()


@pytest.mark.parametrize(
    ("thread", "is_alone"),
    [
        (threading.Thread(target=Trainer().train), True),
        (threading.Thread(target=Trainer().step), True),
        (threading.Thread(target=train_and_tell), True),
        (TrainingThread(), True),
        (threading.Thread(target=Trainer().look), False),
        (threading.Thread(target=Trainer().train, args=(RESULTS,)), True),
        (threading.Thread(target=Trainer().train, kwargs={"results": FULL}), False),
        (threading.Thread(target=Trainer().train_as_told, args=(ENDLESS,)), False),
        (threading.Thread(target=Trainer().train_when_ready), False),
        (threading.Thread(target=threading.Event().wait), False),
        (threading.Thread(), False),
    ],
)
def test_a_thread_that_waits_for_nothing_trains_alone(thread: threading.Thread, *, is_alone: bool) -> None:
    assert trains_alone(thread, lambda path: path == __file__) is is_alone
    assert not trains_alone(thread, lambda _path: False)


SCRIPT = """
import threading, torch
weight = torch.zeros(1 << 20, device="cuda", requires_grad=True)
optimizer = torch.optim.Adam([weight])
def train(steps):
    for _ in range(steps):
        weight.exp().sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    "start",
    [
        """
        thread = threading.Thread(target=train, args=(30,))
        thread.start()
        thread.join()
        """,
        """
        class Worker(threading.Thread):
            def run(self):
                train(30)
        worker = Worker(daemon=True)
        worker.start()
        while worker.is_alive():
            worker.join(0.1)
        """,
    ],
)
def test_a_program_that_trains_in_a_thread_has_the_estimate_of_one_that_does_not(tmp_path: Path, start: str) -> None:
    plain = estimate_of(tmp_path, SCRIPT + "train(30)")
    found = estimate_of(tmp_path, SCRIPT + textwrap.dedent(start))
    assert found.peak_allocated_bytes == plain.peak_allocated_bytes > 4 * (4 << 20)
    assert found.steps == plain.steps
    assert any("a thread that trains was simulated in the main thread" in note for note in found.notes)


PRODUCTS = """
import threading, torch
def train():
    weight = torch.zeros(64, 64, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(5):
        (weight @ weight.detach()).sum().backward()
        optimizer.step()
threads = [threading.Thread(target=train) for _ in range(3)]
"""


def test_threads_that_train_beside_each_other_have_their_own_handles(tmp_path: Path) -> None:
    beside = estimate_of(tmp_path, PRODUCTS + "for one in threads: one.start()\nfor one in threads: one.join()")
    after = estimate_of(tmp_path, PRODUCTS + "for one in threads:\n    one.start()\n    one.join()")
    assert beside.peak_allocated_bytes - after.peak_allocated_bytes == pytest.approx(2 * (32 << 20), abs=1 << 20)
    assert beside.upper_bytes > after.upper_bytes


def test_an_error_in_the_thread_is_told_with_its_line(tmp_path: Path) -> None:
    source = SCRIPT.replace("weight.exp()", "weight.exp_none()") + "threading.Thread(target=train, args=(3,)).start()"
    with pytest.raises(Exception, match=r"script_0.py:7: AttributeError"):
        estimate_of(tmp_path, source)


LEARNER = """
import queue
batches = queue.Queue(maxsize=4)
def learn():
    while batches.get() is not None:
        train(1)
learner = threading.Thread(target=learn)
learner.start()
for _ in range({count}):
    batches.put(1)
batches.put(None)
learner.join()
"""


def test_a_thread_that_trains_with_what_others_give_it_is_simulated_beside_them(tmp_path: Path) -> None:
    plain = estimate_of(tmp_path, SCRIPT + "train(30)")
    found = estimate_of(tmp_path, SCRIPT + LEARNER.format(count=30))
    assert found.peak_allocated_bytes == plain.peak_allocated_bytes
    assert found.notes == plain.notes


def test_the_last_step_can_be_that_of_another_thread(tmp_path: Path) -> None:
    """The main thread waits for it then."""
    endless = LEARNER.replace("maxsize=4", "").format(count=500).replace("batches.put(None)", "")
    found = estimate_of(tmp_path, SCRIPT + endless)
    assert 90 < found.steps < 110
    assert [note for note in found.notes if note.startswith("script_0.py:8: the simulation ended where the program")]
