"""Gradients that another thread sets and removes: reading them at the wrong moment ends the process with a signal."""

from __future__ import annotations

import subprocess

import pytest
from quick import quick_python

READS = 30_000

PROGRAM = f"""
import threading
import torch
from gpuledger.collect.adapter.other_threads import gradients_of

weights = [torch.ones(2, requires_grad=True) for _ in range(50)]
ended = threading.Event()

def set_and_remove():
    while not ended.wait(1e-4):
        for _ in range(100):
            for weight in weights:
                weight.grad = torch.zeros(2)
            for weight in weights:
                weight.grad = None

thread = threading.Thread(target=set_and_remove)
thread.start()
found = []
while len(found) < {READS} or len(set(found)) < 2:
    found.append(gradients_of(weights) is not None)
ended.set()
thread.join()
print(sorted(set(found)))
"""


@pytest.mark.torch
def test_the_process_survives() -> None:
    """Without the look at the other thread's frame, this dies within the first thousands of reads."""
    done = subprocess.run([quick_python(), "-c", PROGRAM], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "[False, True]\n"), done.stderr
