# A small Transformer writes token by token with a growing context.
import corpus_state
import torch

corpus_state.seed()
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
model = torch.nn.ModuleDict(
    {
        "embed": torch.nn.Embedding(20, 16),
        "body": torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        "head": torch.nn.Linear(16, 20),
    }
).eval()
tokens = torch.tensor([[1]])
with torch.no_grad():
    for _ in range(30):
        hidden = model["body"](model["embed"](tokens))
        choice = torch.multinomial(model["head"](hidden[:, -1]).softmax(-1), 1)
        tokens = torch.cat([tokens, choice], dim=1)
print(tokens.tolist())
corpus_state.report(model=model)
