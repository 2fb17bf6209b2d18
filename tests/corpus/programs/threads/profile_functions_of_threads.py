# threading.setprofile and settrace are set for threads that begin later, and count their calls.
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


counts = {"call": 0, "threads": set()}


def count(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "forward":
        counts["call"] += 1
        counts["threads"].add(threading.current_thread().name)


threading.setprofile(count)
for number in range(4):
    thread = threading.Thread(target=lambda: [step() for _ in range(6)], name=f"trainer {number}")
    thread.start()
    thread.join()
threading.setprofile(None)
print(counts["call"], sorted(counts["threads"]))
corpus_state.report(model=model)
