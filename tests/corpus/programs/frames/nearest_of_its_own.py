# Finds the nearest frame outside of torch, as warnings helpers do, and its local variables.
# allowed: walks frames
import sys

import corpus_state
import torch


class Asking(torch.nn.Module):
    def forward(self, x):
        frame = sys._getframe(1)
        while "torch" in frame.f_code.co_filename.split("/")[-4:]:
            frame = frame.f_back
        found.append(frame.f_code.co_name)
        return x


found = []
corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model.append(Asking())


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(sorted(set(found)))
corpus_state.report(model=model, recording_over=True)
