# Limits of descriptors, of the stack and of the size of files are set, read and lowered.
import resource

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


print(resource.getrlimit(resource.RLIMIT_STACK)[0] != 0)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
losses = [step() for _ in range(4)]
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
files = []
try:
    while True:
        files.append(open("/dev/null"))
except OSError as error:
    print(type(error).__name__, error.errno)
for one in files:
    one.close()
losses += [step() for _ in range(20)]
print(f"{losses[-1]:.6f}")
corpus_state.report(model=model)
