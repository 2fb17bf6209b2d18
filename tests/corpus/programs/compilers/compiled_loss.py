# Only the loss, a function, is compiled. The model is not.
import corpus_state
import torch
from torch import nn

corpus_state.seed()


@torch.compile(backend="aot_eager")
def loss_of(logits, labels):
    logs = logits.float().log_softmax(-1)
    return -logs.gather(-1, labels[:, None]).mean() + 0.01 * logs.exp().square().sum(-1).mean()


model = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(0, 1), nn.Linear(8, 40))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    loss = loss_of(model(torch.randint(0, 50, (4, 6))), torch.randint(0, 40, (24,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.5f}")
corpus_state.report(model=model, recording_over=True)
