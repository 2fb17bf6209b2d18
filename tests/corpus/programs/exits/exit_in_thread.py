# sys.exit in a thread ends the thread alone; os._exit in a thread ends all.
# status: 21
import os
import sys
import threading

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


step()
thread = threading.Thread(target=sys.exit, args=(4,))
thread.start()
thread.join()
step()
print("still here", flush=True)
threading.Thread(target=os._exit, args=(21,)).start()
threading.Event().wait()
