"""Speculative decoding: a small model proposes four tokens, the large one accepts some of them."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Model(nn.Module):
    def __init__(self, width, layers, words=5000):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(512, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, words):
        length = words.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=words.device)
        hidden = self.words(words) + self.places(torch.arange(length, device=words.device))
        return self.head(self.blocks(hidden, mask=mask))


@torch.no_grad()
def generate(large, small, words, most=120, ahead=4):
    while words.shape[1] < most:
        draft = words
        guesses = []
        for _ in range(ahead):
            chances = small(draft)[:, -1].softmax(-1)
            token = torch.multinomial(chances, 1)
            guesses.append(chances.gather(1, token))
            draft = torch.cat([draft, token], 1)
        chances = large(draft)[:, words.shape[1] - 1 :].softmax(-1)
        accepted = 0
        for place in range(ahead):
            token = draft[:, words.shape[1] + place]
            ratio = chances[0, place, token] / guesses[place][0]
            if torch.rand(1, device=words.device) > ratio:
                break
            accepted += 1
        words = draft[:, : words.shape[1] + accepted]
        token = torch.multinomial(chances[:, accepted], 1)
        words = torch.cat([words, token], 1)
    return words


torch.manual_seed(0)
large, small = Model(320, 6).to(device).eval(), Model(96, 2).to(device).eval()
print(generate(large, small, torch.randint(5000, (1, 32)).to(device)).shape)
