# Inference alone: beam search with a transformer decoder, the states of all beams reordered each step.
# devices: cpu cuda
import corpus_state
import torch
from torch import nn

corpus_state.seed()
device = corpus_state.DEVICE
embed = nn.Embedding(12, 16)
layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
model = nn.ModuleList([embed, nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 12)])
model = model.to(device).eval()
beams, scores = torch.zeros(3, 1, dtype=torch.long, device=device), torch.zeros(3, device=device)
with torch.inference_mode():
    for length in range(1, 26):
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=device)
        hidden = model[1](model[0](beams), mask=mask, is_causal=True)
        chances = model[2](hidden[:, -1]).log_softmax(1) + scores[:, None]
        scores, places = chances.flatten().topk(3)
        beams = torch.cat([beams[places // 12], (places % 12)[:, None]], dim=1)
print(beams[0].tolist())
corpus_state.report(model=model, recording_over=True)
