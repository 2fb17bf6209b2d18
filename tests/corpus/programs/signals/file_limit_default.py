# allowed: notes
# A limit on the size of files, and its default, which ends the process for its signal.
import resource
import signal

import corpus_state
import torch

seen = []
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
corpus_state.seed()
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for number in range(30):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
print(seen, signal.sigpending(), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
corpus_state.report(model=model)
