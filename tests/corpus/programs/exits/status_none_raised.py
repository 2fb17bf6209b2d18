# Raises SystemExit by hand, from deep inside a model.
# status: 0
import corpus_state
import torch


class Leaving(torch.nn.Module):
    def forward(self, x):
        if count == 2:
            raise SystemExit
        return x


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model.append(torch.nn.Sequential(Leaving()))


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for count in range(30):
    print(f"{step():.6f}")
