# Holds an exception with its frames, and looks at the local variables in them.
import corpus_state
import torch


class Failing(torch.nn.Module):
    def forward(self, x):
        inner = x * 2
        raise ValueError(inner.sum().item())


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


failing = torch.nn.Sequential(torch.nn.Sequential(Failing()))
kept = []
for number in range(24):
    step()
    if number in (0, 2, 4, 8, 14, 20):
        try:
            failing(torch.ones(1))
        except ValueError as error:
            kept.append(error)
for error in kept:
    place, names = error.__traceback__, []
    while place is not None:
        names.append((place.tb_frame.f_code.co_name, sorted(name for name in place.tb_frame.f_locals)[:3]))
        place = place.tb_next
    print(names[1:])
kept.clear()
corpus_state.report(model=model, recording_over=True)
