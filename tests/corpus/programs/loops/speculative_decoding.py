# A small draft model proposes tokens, and a larger one accepts or replaces them. No cache: inputs grow.
import corpus_state
import torch
from torch import nn

corpus_state.seed()
WORDS, PROPOSED = 60, 3


class Language(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True, dropout=0.0)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, WORDS)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.blocks(self.words(ids), mask=mask, is_causal=True))


target, draft = Language(32, 2).eval(), Language(8, 1).eval()


@torch.inference_mode()
def generate(ids, most):
    while ids.shape[1] < most:
        proposal = ids
        for _ in range(PROPOSED):
            proposal = torch.cat([proposal, draft(proposal)[:, -1:].argmax(-1)], 1)
        checked = target(proposal)[:, ids.shape[1] - 1 :].argmax(-1)
        new = proposal[:, ids.shape[1] :]
        agreed = int((new == checked[:, :-1]).long().cumprod(1).sum())
        ids = torch.cat([ids, new[:, :agreed], checked[:, agreed : agreed + 1]], 1)
    return ids


print(generate(torch.randint(0, WORDS, (1, 6)), 24)[0, :24].tolist())
corpus_state.report(model=target, recording_over=True)
