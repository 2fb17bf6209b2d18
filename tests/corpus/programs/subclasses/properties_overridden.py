# A subclass whose attributes are properties of its own: reading them has side effects.
import corpus_state
import torch


class Odd(torch.Tensor):
    reads = []

    @property
    def shape(self):
        Odd.reads.append("shape")
        return super().shape

    @property
    def grad_fn(self):
        Odd.reads.append("grad_fn")
        return super().grad_fn

    @property
    def device(self):
        Odd.reads.append("device")
        return super().device

    def data_ptr(self):
        Odd.reads.append("data_ptr")
        return super().data_ptr()

    def untyped_storage(self):
        Odd.reads.append("untyped_storage")
        return super().untyped_storage()

    def __len__(self):
        raise RuntimeError("no length")


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.randn(8, 8).as_subclass(Odd)).square().mean().backward()
    optimizer.step()
print(len(Odd.reads), sorted(set(Odd.reads)))
corpus_state.report(model=model, recording_over=True)
