# A process pool of concurrent.futures evaluates states of the model while it trains.
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

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


def evaluate(state):
    other = torch.nn.Linear(8, 16)
    other.load_state_dict({name[2:]: torch.tensor(value) for name, value in state.items()})
    return round(other(torch.ones(1, 8)).sum().item(), 4)


with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
    waiting = []
    for number in range(12):
        step()
        if number % 4 == 3:
            state = {name: value.tolist() for name, value in model.state_dict().items() if name.startswith("0.")}
            waiting.append(pool.submit(evaluate, state))
    results = [one.result() for one in waiting]
print(results)
corpus_state.report(model=model)
