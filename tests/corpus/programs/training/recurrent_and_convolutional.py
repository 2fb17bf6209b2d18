# Recurrent, convolutional, attention and normalising layers in one model.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.ModuleDict(
    {
        "convolve": torch.nn.Sequential(torch.nn.Conv1d(3, 8, 3, padding=1), torch.nn.GroupNorm(2, 8), torch.nn.GELU()),
        "recur": torch.nn.LSTM(8, 8, 2, batch_first=True, dropout=0.1, bidirectional=True),
        "attend": torch.nn.MultiheadAttention(16, 4, batch_first=True),
        "head": torch.nn.Linear(16, 2),
    }
)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(30):
    optimizer.zero_grad()
    hidden = model["convolve"](torch.randn(4, 3, 10)).mT
    hidden, _ = model["recur"](torch.nn.utils.rnn.pack_padded_sequence(hidden, torch.tensor([10, 8, 8, 3]), True))
    hidden, _ = torch.nn.utils.rnn.pad_packed_sequence(hidden, batch_first=True)
    hidden, _ = model["attend"](hidden, hidden, hidden)
    model["head"](hidden.mean(1)).square().mean().backward()
    optimizer.step()
corpus_state.report(model=model, recording_over=True)
