# Forward in one thread, backward in a second, the step in a third.
from concurrent.futures import ThreadPoolExecutor

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
    for _ in range(30):
        optimizer.zero_grad()
        loss = first.submit(lambda: model(torch.randn(8, 8)).square().mean()).result()
        second.submit(loss.backward).result()
        optimizer.step()
corpus_state.report(model=model, recording_over=True)
