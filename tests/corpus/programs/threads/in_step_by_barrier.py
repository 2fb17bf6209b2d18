# Two threads train in step, with a barrier between forward, backward and step.
import threading

import corpus_state
import torch

corpus_state.seed()
models = [torch.nn.Linear(8, 4) for _ in range(2)]
data = torch.randn(8, 8)
barrier = threading.Barrier(2)


def work(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        barrier.wait()
        loss = model(data).square().mean()
        barrier.wait()
        loss.backward()
        barrier.wait()
        optimizer.step()


threads = [threading.Thread(target=work, args=(model,)) for model in models]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
corpus_state.report(model=models)
