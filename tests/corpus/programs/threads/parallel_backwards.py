# Two threads walk through one graph's halves at the same time.
import threading

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(30):
    optimizer.zero_grad()
    hidden = model(torch.randn(8, 8))
    losses = [hidden[:4].square().mean(), hidden[4:].square().mean()]
    for loss in losses:
        thread = threading.Thread(target=loss.backward, kwargs={"retain_graph": True})
        thread.start()
        thread.join()
    optimizer.step()
corpus_state.report(model=model, recording_over=True)
