"""Other operators and shapes, chosen when the rules were there: for bench/estimate/operator_memory.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from operator_cases import List, bf16, f16, f32, floats, gpu, i64, ids
from operators_first import LINALG, attended, square

SECOND = List()
case, over = SECOND.case, SECOND.over

over(
    {
        "sum rows": lambda x: x.sum((0, 1)),
        "mean tokens": lambda x: x.mean(1),
        "mean rows": lambda x: x.mean((0, 1)),
        "positive count": lambda x: (x > 0).sum(),
        "positive per row": lambda x: (x > 0).sum(-1),
        "positive mean": lambda x: (x > 0).float().mean((0, 1)),
        "var tokens": lambda x: x.var(1),
        "lse dim 1": lambda x: x.logsumexp(1),
        "norm tokens": lambda x: x.norm(dim=1),
        "max tokens": lambda x: x.max(1).values,
        "amin": lambda x: x.amin(1),
        "argmax": lambda x: x.argmax(-1),
        "softmax float": lambda x: x.softmax(-1, dtype=f32),
        "log_softmax float": lambda x: x.log_softmax(-1, dtype=f32),
        "sum float": lambda x: x.sum(-1, dtype=f32),
        "roll dims": lambda x: x.roll((1, 2), (0, 1)),
        "layer_norm affine": lambda x: F.layer_norm(
            x, (768,), torch.ones(768, device=gpu, dtype=x.dtype), torch.zeros(768, device=gpu, dtype=x.dtype)
        ),
        "cumsum tokens": lambda x: x.cumsum(1),
        "center": lambda x: x - x.mean((0, 1), keepdim=True),
        "standardize": lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5),
        "last token": lambda x: x[:, -1],
        "every other": lambda x: x[:, ::2].contiguous(),
        "max over all": lambda x: x.max(),
        "top token": lambda x: x.topk(1, 1).values,
        "sort tokens": lambda x: x.sort(1).values,
    },
    lambda dtype: [floats(32, 300, 768, dtype=dtype)],
)
over(
    {
        "mse picture": F.mse_loss,
        "mse sum": lambda a, b: F.mse_loss(a, b, reduction="sum"),
        "mse none": lambda a, b: F.mse_loss(a, b, reduction="none").mean(),
        "mse target": lambda a, b: F.mse_loss(a, b.detach()),
        "l1 picture": F.l1_loss,
        "smooth sum": lambda a, b: F.smooth_l1_loss(a, b, reduction="sum"),
        "huber delta": lambda a, b: F.huber_loss(a, b, delta=0.5),
        "square by hand": lambda a, b: ((a - b) ** 2).mean(),
        "bce weighted": lambda a, b: F.binary_cross_entropy_with_logits(
            a, (b > 0).to(a.dtype), pos_weight=torch.full((224,), 3.0, device=gpu, dtype=a.dtype)
        ),
        "bce none": lambda a, b: F.binary_cross_entropy_with_logits(a, (b > 0).to(a.dtype), reduction="none").mean(),
        "soft margin": lambda a, b: F.soft_margin_loss(a, b.sign().detach()),
        "hinge": lambda a, b: F.relu(1 - a * b.sign()).mean(),
        "dice": lambda a, b: (
            1
            - 2 * (a.sigmoid() * (b > 0)).sum((1, 2, 3)).div(a.sigmoid().sum((1, 2, 3)) + (b > 0).sum((1, 2, 3))).mean()
        ),
        "charbonnier": lambda a, b: ((a - b) ** 2 + 1e-6).sqrt().mean(),
        "total variation": lambda a, b: (
            (a[..., 1:] - a[..., :-1]).abs().mean() + (a[:, :, 1:] - a[:, :, :-1]).abs().mean()
        ),
        "focal": lambda a, b: (
            ((1 - a.sigmoid()) ** 2) * F.binary_cross_entropy_with_logits(a, (b > 0).to(a.dtype), reduction="none")
        ).mean(),
        "mask average": lambda a, b: (a * (b > 0)).sum() / (b > 0).sum(),
    },
    lambda dtype: [floats(32, 3, 224, 224, dtype=dtype), floats(32, 3, 224, 224, dtype=dtype)],
)
case(
    "bce",
    lambda: [floats(4096, 1000), floats(4096, 1000)],
    lambda a, b: F.binary_cross_entropy(a.sigmoid(), (b > 0).float()),
)
case(
    "multilabel",
    lambda: [floats(4096, 1000), floats(4096, 1000)],
    lambda a, b: F.multilabel_soft_margin_loss(a, (b > 0).float()),
)
case(
    "cosine embedding",
    lambda: [floats(8192, 512), floats(8192, 512)],
    lambda a, b: F.cosine_embedding_loss(a, b, torch.ones(8192, device=gpu)),
)
case(
    "contrastive",
    lambda: [floats(4096, 256), floats(4096, 256)],
    lambda a, b: F.cross_entropy(
        F.normalize(a, dim=1) @ F.normalize(b, dim=1).T / 0.07, torch.arange(4096, device=gpu)
    ),
)
case(
    "knowledge",
    lambda: [floats(4096, 1000), floats(4096, 1000)],
    lambda a, b: F.kl_div(F.log_softmax(a / 2, 1), F.softmax(b.detach() / 2, 1), reduction="batchmean"),
)
over(
    {
        "vocabulary loss": lambda x, t: F.cross_entropy(x.flatten(0, 1), t.flatten()),
        "vocabulary float loss": lambda x, t: F.cross_entropy(x.float().flatten(0, 1), t.flatten()),
        "accuracy": lambda x, t: (x.argmax(-1) == t).sum(),
        "accuracy mean": lambda x, t: (x.argmax(-1) == t).float().mean(),
        "log prob of tokens": lambda x, t: x.log_softmax(-1).gather(-1, t[..., None]),
        "z loss": lambda x, t: x.logsumexp(-1).pow(2).mean(),
        "entropy": lambda x, t: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1).mean(),
    },
    lambda dtype: [floats(4, 256, 32000, dtype=dtype), ids(32000, 4, 256)],
)
over(
    {
        "top 50": lambda x: x.topk(50, -1),
        "top 1": lambda x: x.topk(1, -1),
        "draw": lambda x: torch.multinomial(x.softmax(-1), 1),
        "nucleus": lambda x: x.sort(descending=True).values.softmax(-1).cumsum(-1),
        "sort vocabulary": lambda x: x.sort(-1),
        "argsort vocabulary": lambda x: x.argsort(-1),
    },
    lambda dtype: [floats(32, 50257, dtype=dtype, grad=False)],
)
over(
    {"router": lambda x: x.softmax(-1).topk(2, -1).values, "experts": lambda x: x.topk(8, -1).values.softmax(-1)},
    lambda dtype: [floats(32768, 64, dtype=dtype)],
)
case("top of few", lambda: [floats(4, 200_000)], lambda x: x.topk(100, -1).values)
case("sort mid rows", lambda: [floats(4096, 2048)], lambda x: x.sort(-1).values)
case("sort long rows", lambda: [floats(64, 30_000)], lambda x: x.sort(-1).values)
case("sort many long rows", lambda: [floats(512, 20_000)], lambda x: x.sort(-1).values)
case("sort flat", lambda: [floats(5_000_000)], lambda x: x.sort().values)
case("sort flat half", lambda: [floats(5_000_000, dtype=f16)], lambda x: x.sort().values)
case("argsort ids", lambda: [ids(1000, 300_000)], lambda t: t.argsort())
case("argsort stable", lambda: [ids(1000, 300_000)], lambda t: t.argsort(stable=True))
case("sort 32 bits", lambda: [ids(1000, 2_000_000).int()], lambda t: t.sort())
case("shuffle small", lambda: [ids(3, 3)], lambda t: torch.randperm(300_000, device=gpu))
case("shuffle tiny", lambda: [ids(3, 3)], lambda t: torch.randperm(20_000, device=gpu))
case("unique small", lambda: [ids(5000, 100_000)], lambda t: t.unique(return_inverse=True, return_counts=True))
case("median flat", lambda: [floats(3_000_000)], lambda x: x.median())
case(
    "quantiles",
    lambda: [floats(2_000_000, grad=False)],
    lambda x: x.quantile(torch.tensor([0.1, 0.5, 0.9], device=gpu)),
)
over(
    {
        "masked tokens": lambda x, m: x[m],
        "masked tokens zero": lambda x, m: x.masked_fill(m[..., None], 0.0),
        "masked mean": lambda x, m: (x * m[..., None]).sum(1) / m.sum(1, keepdim=True),
    },
    lambda dtype: [floats(64, 512, 768, dtype=dtype), (torch.arange(64 * 512, device=gpu).view(64, 512) % 2).bool()],
)
over(
    {
        "rows of table": lambda w, t: w[t],
        "gather dim 1": lambda w, t: w[:32768].view(32, 1024, 256).gather(1, t[:, :, None].expand(-1, -1, 256) % 1024),
        "take along": lambda w, t: torch.take_along_dim(w[:32768].view(32, 1024, 256), t[:, :, None] % 1024, 1),
        "index_select rows": lambda w, t: w.index_select(0, t[0]),
        "embed": lambda w, t: F.embedding(t, w),
        "two indices": lambda w, t: w.view(500, 100, 256)[t % 500, t % 100],
        "index_add rows": lambda w, t: torch.zeros_like(w).index_add(0, t.flatten(), w[: t.numel()]),
        "scatter mean": lambda w, t: torch.zeros(1000, 256, device=gpu, dtype=w.dtype).scatter_reduce(
            0, (t.flatten() % 1000)[:, None].expand(-1, 256), w[: t.numel()], "mean"
        ),
        "put two": lambda w, t: w.clone().index_put((t.flatten(),), w[: t.numel()], accumulate=True),
        "assign": lambda w, t: torch.index_fill(w, 0, t[0], 0.0),
        "neighbours": lambda w, t: torch.zeros(50000, 256, device=gpu, dtype=w.dtype).index_add(
            0, t.flatten(), w[t.flip(0).flatten()]
        ),
    },
    lambda dtype: [floats(50000, 256, dtype=dtype), ids(50000, 32, 128)],
)
for layout in (False, True):
    tail = " last" if layout else ""
    over(
        {
            f"group norm affine{tail}": lambda x: F.group_norm(
                x, 32, torch.ones(128, device=gpu, dtype=x.dtype), torch.zeros(128, device=gpu, dtype=x.dtype)
            ),
            f"instance norm affine{tail}": lambda x: F.instance_norm(
                x, weight=torch.ones(128, device=gpu, dtype=x.dtype), bias=torch.zeros(128, device=gpu, dtype=x.dtype)
            ),
            f"norm over channels{tail}": lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (128,)).permute(0, 3, 1, 2),
            f"pool to one{tail}": lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
            f"mean of pictures{tail}": lambda x: x.mean((-2, -1)),
            f"max of pictures{tail}": lambda x: x.amax((2, 3)),
            f"squeeze{tail}": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
            f"bias{tail}": lambda x: x + torch.ones(1, 128, 1, 1, device=gpu, dtype=x.dtype).requires_grad_(),
            f"bicubic down{tail}": lambda x: F.interpolate(x, scale_factor=0.5, mode="bicubic"),
            f"antialias bicubic{tail}": lambda x: F.interpolate(x, scale_factor=0.5, mode="bicubic", antialias=True),
            f"nearest exact{tail}": lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"),
            f"reflect 3{tail}": lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"),
            f"circular{tail}": lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"),
            f"max and indices{tail}": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
            f"gem{tail}": lambda x: F.avg_pool2d(x.clamp(min=1e-6).pow(3), x.shape[-2:]).pow(1 / 3),
            f"batch norm affine{tail}": lambda x: F.batch_norm(
                x,
                None,
                None,
                torch.ones(128, device=gpu).requires_grad_(),
                torch.zeros(128, device=gpu).requires_grad_(),
                True,
            ),
            f"tokens{tail}": lambda x: x.flatten(2).transpose(1, 2),
            f"windows{tail}": lambda x: x.view(8, 128, 8, 8, 8, 8).permute(0, 2, 4, 3, 5, 1).reshape(-1, 64, 128),
            f"concatenate{tail}": lambda x: torch.cat([x, x.flip(1)], 1),
            f"dropout2d{tail}": lambda x: F.dropout2d(x, 0.2),
            f"warp{tail}": lambda x: F.grid_sample(
                x,
                F.affine_grid(
                    torch.eye(2, 3, device=gpu, dtype=x.dtype).repeat(8, 1, 1), [8, 128, 32, 32], align_corners=True
                ),
                align_corners=True,
            ),
        },
        lambda dtype, layout=layout: [floats(8, 128, 64, 64, dtype=dtype, last=layout)],
        (f32, bf16),
    )


def many(batch: int, q: int, kv: int, length: int, width: int, dtype: torch.dtype, keys: int = 0) -> list[torch.Tensor]:
    return [
        floats(batch, q if index == 0 else kv, length if index == 0 else keys or length, width, dtype=dtype)
        for index in range(3)
    ]


for name, sizes in {
    "grouped 128": (2, 32, 8, 1024, 128),
    "one key": (4, 16, 1, 512, 64),
    "width 96": (8, 8, 8, 384, 96),
    "width 256": (4, 4, 4, 512, 256),
    "odd 333": (4, 6, 6, 333, 64),
    "long": (1, 16, 16, 4096, 64),
    "short": (64, 12, 12, 49, 32),
    "width 40": (4, 8, 8, 1024, 40),
}.items():
    over(
        {
            f"attend {name}": lambda q, k, v: attended(
                q, k, v, is_causal=q.shape[2] == k.shape[2], enable_gqa=q.shape[1] != k.shape[1]
            )
        },
        lambda dtype, sizes=sizes: many(*sizes, dtype),
        (f32, bf16, f16),
    )
over(
    {
        "attend padding": lambda q, k, v: attended(
            q, k, v, attn_mask=(torch.arange(300, device=gpu) < 250)[None, None, None]
        ),
        "attend from projection": lambda q, k, v: attended(
            *(one.transpose(1, 2).reshape(4, 300, -1).view(4, 300, 8, 64).transpose(1, 2) for one in (q, k, v))
        ),
    },
    lambda dtype: many(4, 8, 8, 300, 64, dtype),
)


def z(*shape: int) -> torch.Tensor:
    """Return complex random numbers on the GPU."""
    return torch.view_as_complex(floats(*shape, 2, grad=False)).requires_grad_()


case("fft of complex", lambda: [z(64, 64, 1024)], lambda x: torch.fft.fft(x))
case("fft2 of complex", lambda: [z(32, 256, 256)], lambda x: torch.fft.fft2(x))
case("ifft2 of complex", lambda: [z(32, 256, 256)], lambda x: torch.fft.ifft2(x))
case("rfft raw", lambda: [floats(64, 64, 2048)], lambda x: torch.fft.rfft(x))
case("rfft2 raw", lambda: [floats(32, 256, 256)], lambda x: torch.fft.rfft2(x, norm="ortho"))
case("irfft2 raw", lambda: [z(32, 256, 129)], lambda x: torch.fft.irfft2(x, norm="ortho"))
case("irfft raw", lambda: [z(64, 64, 1025)], lambda x: torch.fft.irfft(x))
case("rfft 1000", lambda: [floats(64, 64, 1000)], lambda x: torch.fft.rfft(x))
case("rfft 997", lambda: [floats(64, 64, 997)], lambda x: torch.fft.rfft(x))
case("fft of real", lambda: [floats(64, 64, 1024)], lambda x: torch.fft.fft(x))
case(
    "spectrum",
    lambda: [floats(16, 64_000, grad=False)],
    lambda x: torch.stft(x, 1024, 256, window=torch.hann_window(1024, device=gpu), return_complex=True).abs().pow(2),
)
case(
    "spectral layer",
    lambda: [floats(16, 32, 64, 64), z(32, 32, 12, 12)],
    lambda x, w: torch.fft.irfft2(
        F.pad(torch.einsum("bixy,ioxy->boxy", torch.fft.rfft2(x)[..., :12, :12], w), (0, 21, 0, 52)), s=(64, 64)
    ),
)
case(
    "long convolution",
    lambda: [floats(8, 128, 2048), floats(128, 2048)],
    lambda u, k: torch.fft.irfft(torch.fft.rfft(u, n=4096) * torch.fft.rfft(k, n=4096), n=4096)[..., :2048],
)
case("angle", lambda: [z(16, 256, 256)], lambda x: x.angle())
case("complex product", lambda: [z(64, 256, 256), z(64, 256, 256)], lambda a, b: a @ b)
case(
    "rotary",
    lambda: [floats(8, 512, 16, 64)],
    lambda x: torch.view_as_real(
        torch.view_as_complex(x.reshape(8, 512, 16, 32, 2))
        * torch.polar(torch.ones(512, 1, 32, device=gpu), torch.rand(512, 1, 32, device=gpu))
    ).flatten(3),
)
case(
    "neighbours by distance",
    lambda: [floats(8, 2048, 16)],
    lambda x: torch.cdist(x, x).topk(20, -1, largest=False).values,
)
case("distances small", lambda: [floats(64, 20, 3), floats(64, 20, 3)], torch.cdist)
case("kernel matrix", lambda: [floats(3000, 10)], lambda x: torch.exp(-(torch.cdist(x, x) ** 2)))
case("kernel by broadcast", lambda: [floats(1024, 8)], lambda x: torch.exp(-((x[:, None] - x[None]) ** 2).sum(-1)))
for name in (
    "solve",
    "inv",
    "cholesky",
    "logdet",
    "eigh",
    "lu_factor",
    "cholesky_solve",
    "solve_triangular",
    "slogdet",
    "pinv",
):
    for shape in ((1000, 1000), (64, 32, 32)):
        case(f"{name} {'x'.join(map(str, shape))}", lambda shape=shape: square(*shape), LINALG[name])
case("svd tall", lambda: [floats(600, 200)], lambda a: torch.linalg.svd(a, full_matrices=False).S)
case("qr tall", lambda: [floats(2000, 64)], lambda a: torch.linalg.qr(a).Q)
case("low rank", lambda: [floats(2000, 300, grad=False)], lambda a: torch.svd_lowrank(a, 10))
case("least squares", lambda: [floats(2000, 50), floats(2000, 1)], lambda a, b: torch.linalg.lstsq(a, b).solution)
case(
    "whitening",
    lambda: [floats(4096, 128)],
    lambda x: x @ torch.linalg.inv(torch.linalg.cholesky(x.T @ x / 4096 + 0.1 * torch.eye(128, device=gpu))).T,
)
case(
    "newton schulz",
    lambda: [floats(1024, 512, dtype=bf16, grad=False)],
    lambda g: sum(((g @ g.T) @ g) for _ in range(3)),
)


def cast(call: Callable[..., Any], dtype: torch.dtype = bf16) -> Callable[..., Any]:
    return lambda *args: torch.autocast("cuda", dtype)(lambda: call(*args))()


for name, call in {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "norm": lambda x: x.norm(),
    "mean": lambda x: x.mean((0, 1)),
    "sum": lambda x: x.sum(0),
    "exp": lambda x: x.exp(),
    "pow": lambda x: x.pow(2),
    "cumsum": lambda x: x.cumsum(-1),
    "loss": lambda x: F.cross_entropy(x.flatten(0, 1), torch.zeros(8192, device=gpu, dtype=i64)),
    "mse": lambda x: F.mse_loss(x, torch.zeros_like(x)),
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, torch.zeros_like(x)),
    "gelu": F.gelu,
    "layer norm": lambda x: F.layer_norm(x, (2048,)),
    "rms norm": lambda x: F.rms_norm(x, (2048,), torch.ones(2048, device=gpu)),
    "group norm": lambda x: F.group_norm(x.transpose(1, 2), 8),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(0), -1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "einsum": lambda x: torch.einsum("abc,adc->abd", x, x[:, :256]),
}.items():
    for dtype in (bf16, f16):
        case(
            f"under autocast {name} {str(dtype)[6:]}",
            lambda dtype=dtype: [floats(32, 256, 2048, dtype=dtype)],
            cast(call, dtype),
        )
case(
    "bag offsets",
    lambda: [floats(20000, 128), ids(20000, 40_000)],
    lambda w, t: F.embedding_bag(t, w, torch.arange(0, 40_000, 20, device=gpu), mode="mean"),
)
case("bag max", lambda: [floats(20000, 128), ids(20000, 512, 20)], lambda w, t: F.embedding_bag(t, w, mode="max"))
case(
    "embedding by frequency",
    lambda: [floats(20000, 128), ids(20000, 512, 20)],
    lambda w, t: F.embedding(t, w, scale_grad_by_freq=True),
)
case("embedding sparse", lambda: [floats(20000, 128), ids(20000, 512, 20)], lambda w, t: F.embedding(t, w, sparse=True))
case(
    "codebook",
    lambda: [floats(16, 256, 64), floats(1024, 64)],
    lambda x, c: F.mse_loss(F.embedding(torch.cdist(x.flatten(0, 1), c).argmin(-1), c), x.flatten(0, 1)),
)
case("histogram", lambda: [floats(1_000_000, grad=False)], lambda x: torch.histc(x, 64, -3, 3))
case("confusion", lambda: [ids(100, 1_000_000)], lambda t: torch.bincount(t * 100 + t.flip(0), minlength=10_000))
