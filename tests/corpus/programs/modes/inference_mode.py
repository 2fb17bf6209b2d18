# Only inference, in inference mode, with a model that keeps a cache.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.GRU(8, 16, batch_first=True).eval()
state = None
with torch.inference_mode():
    for number in range(30):
        out, state = model(torch.randn(2, 3, 8), state)
print(state.is_inference(), f"{out.sum().item():.6f}")
corpus_state.report(
    model=[model, state], recording_over=not torch.cuda.device_count()
)  # a GPU is waited for to the end
