# Walks all frames, and prints those of its own file.
import sys

import corpus_state
import torch


class Looking(torch.nn.Module):
    def forward(self, x):
        names, frame = [], sys._getframe()
        while frame is not None:
            if frame.f_code.co_filename == __file__:
                names.append((frame.f_code.co_name, frame.f_lineno))
            frame = frame.f_back
        if number in (0, 2, 4, 8, 14, 20):
            print(number, names)
        return x


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model.append(torch.nn.Sequential(Looking()))


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(24):
    step()
corpus_state.report(model=model, recording_over=True)
