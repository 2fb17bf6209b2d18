# cProfile counts the calls of the program's own functions, and of the models'.
import cProfile
import pstats

import corpus_state
import torch


class Layer(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x)


corpus_state.seed()
model = torch.nn.Sequential(Layer(8, 8), torch.nn.ReLU(), Layer(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


profiler = cProfile.Profile()
profiler.enable()
for _ in range(30):
    step()
profiler.disable()
counts = pstats.Stats(profiler).stats
for (file, line, name), (calls, *_) in sorted(counts.items(), key=str):
    if file.endswith("cprofile.py"):
        print(line, name, calls)
corpus_state.report(model=model, recording_over=True)
