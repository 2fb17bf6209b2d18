# Ranges of its own, as torch.profiler and NVTX have them, around and inside modules.
import corpus_state
import torch


class Ranged(torch.nn.Linear):
    @torch.profiler.record_function("ranged")
    def forward(self, x):
        with torch.autograd.profiler.record_function("inside"):
            return super().forward(x)


corpus_state.seed()
model = torch.nn.Sequential(Ranged(8, 8), Ranged(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


with torch.autograd.profiler.emit_itt(enabled=False):
    for _ in range(30):
        step()
corpus_state.report(model=model, recording_over=True)
