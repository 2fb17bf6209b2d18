"""A cuDNN LSTM trains on packed sequences; its weights lie in one flat buffer."""

import corpus_state
import torch
from torch.nn.utils.rnn import pack_padded_sequence

torch.manual_seed(38)
lstm = torch.nn.LSTM(64, 128, num_layers=2, batch_first=True).cuda()
optimizer = torch.optim.Adam(lstm.parameters())
lengths = torch.tensor([30, 24, 11, 5])
for _ in range(40):
    packed = pack_padded_sequence(torch.randn(4, 30, 64, device="cuda"), lengths, batch_first=True)
    output, _ = lstm(packed)
    output.data.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(len({parameter.untyped_storage().data_ptr() for parameter in lstm.parameters()}))
corpus_state.report(model=lstm)
