# A recurrent language model whose state goes on from step to step, detached.
# devices: cpu cuda
import corpus_state
import torch
from torch import nn

corpus_state.seed()
device = corpus_state.DEVICE
embed, cells, head = nn.Embedding(20, 8), nn.LSTM(8, 16, num_layers=2, dropout=0.1), nn.Linear(16, 20)
model = nn.ModuleList([embed, cells, head]).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
words = torch.randint(0, 20, (25 * 5 + 1, 4), device=device)
state = None
for number in range(25):
    piece = words[number * 5 : number * 5 + 6]
    outputs, state = cells(embed(piece[:-1]), state)
    loss = nn.functional.cross_entropy(head(outputs).flatten(0, 1), piece[1:].flatten())
    state = tuple(one.detach() for one in state)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
print(f"{loss.item():.5f} {norm.item():.5f}")
corpus_state.report(model=model, recording_over=True)
