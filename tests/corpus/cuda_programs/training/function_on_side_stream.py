"""A custom autograd Function does its work on a stream of its own, forward and backward."""

import corpus_state
import torch

torch.manual_seed(39)
side = torch.cuda.Stream()


class OnSide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        side.wait_stream(torch.cuda.current_stream())
        result = torch.empty_like(x)
        with torch.cuda.stream(side):
            torch.sin(x, out=result)
        torch.cuda.current_stream().wait_stream(side)
        return result

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        result = torch.empty_like(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cos(x, out=result).mul_(gradient)
        torch.cuda.current_stream().wait_stream(side)
        return result


first, second = torch.nn.Linear(128, 128).cuda(), torch.nn.Linear(128, 128).cuda()
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
for _ in range(40):
    loss = second(OnSide.apply(first(torch.randn(64, 128, device="cuda")))).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"{loss.item():.6f}", len(side.cuda_stream.to_bytes(8, "little")))
corpus_state.report(model=[first, second])
