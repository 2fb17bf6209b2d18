# A convolutional recogniser of sequences with a CTC loss and inputs of different lengths.
import corpus_state
import torch
from torch import nn

corpus_state.seed()
model = nn.Sequential(nn.Conv1d(4, 16, 3, padding=1), nn.GELU(), nn.Conv1d(16, 6, 3, padding=1))
optimizer = torch.optim.RAdam(model.parameters(), lr=1e-2)
for number in range(22):
    length = 12 + number % 5
    inputs = torch.randn(3, 4, length)
    targets, sizes = torch.randint(1, 6, (3, 4)), torch.tensor([4, 3, 2])
    chances = model(inputs).permute(2, 0, 1).log_softmax(2)
    loss = nn.functional.ctc_loss(chances, targets, torch.full((3,), length), sizes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.5f}")
corpus_state.report(model=model, recording_over=True)
