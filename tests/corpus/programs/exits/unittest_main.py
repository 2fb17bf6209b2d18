# Trains inside unittest.main, of which one test fails.
# status: 1
import io
import unittest

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


class Trains(unittest.TestCase):
    def test_many_steps(self):
        self.assertEqual(len([step() for _ in range(30)]), 30)

    def test_that_fails(self):
        self.assertLess(step(), 0)

    @unittest.expectedFailure
    def test_expected(self):
        self.assertRaises(RuntimeError, step)


if __name__ == "__main__":
    stream = io.StringIO()
    try:
        unittest.main(testRunner=unittest.TextTestRunner(stream=stream, verbosity=2))
    finally:
        print([line for line in stream.getvalue().splitlines() if line.startswith(("test_", "FAILED", "Assertion"))])
        corpus_state.report(model=model, recording_over=True)
