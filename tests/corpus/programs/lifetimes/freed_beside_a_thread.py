# Losses and gradients go as soon as they are dropped, without the collector, while a second thread waits.
import gc
import threading
import weakref

import corpus_state
import torch

corpus_state.seed()
gc.disable()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters())
over = threading.Event()
waiting = threading.Thread(target=over.wait)
waiting.start()
seen = []


def step():
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    seen.extend(map(weakref.ref, [loss, *(parameter.grad for parameter in model.parameters())]))
    optimizer.step()
    optimizer.zero_grad()


for number in range(24):
    step()
    print(number, sum(reference() is not None for reference in seen))
over.set()
waiting.join()
corpus_state.report(model=model, recording_over=True)
