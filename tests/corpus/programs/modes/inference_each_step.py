# A block of inference mode around every call, in every stage; grad mode and plain operators in between.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()


@torch.inference_mode()
def predict(x):
    return model(x)


total = 0.0
for number in range(30):
    with torch.inference_mode():
        y = model(torch.randn(8, 8))
        with torch.inference_mode(False):
            z = torch.ones(3, requires_grad=True).sum()
    z.backward()
    total += y.sum().item() + predict(torch.randn(2, 8)).sum().item() + torch.randn(3, 3).sum().item()
print(total)
corpus_state.report(model=model, recording_over=not torch.cuda.device_count())  # a GPU is waited for to the end
