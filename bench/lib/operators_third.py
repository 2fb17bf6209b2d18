"""Operators, dtypes and layouts that the other lists lack, chosen before rules for them: for operator_memory.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from operator_cases import List, bf16, f16, f32, floats, gpu, ids
from operators_first import square
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

THIRD = List()
case, over = THIRD.case, THIRD.over
f64 = torch.float64

TOKENS = (24, 400, 640)
over(
    {
        "hardtanh": F.hardtanh,
        "selu": F.selu,
        "softsign": F.softsign,
        "rrelu": lambda x: F.rrelu(x, training=True),
        "softmin": lambda x: F.softmin(x, -1),
        "softmax tokens": lambda x: x.softmax(1),
        "sinc": torch.sinc,
        "nan_to_num": torch.nan_to_num,
        "logaddexp": lambda x: torch.logaddexp(x, x.detach()),
        "clamp rows": lambda x: x.clamp(min=x.detach().amin(-1, keepdim=True) / 2),
        "straight through": lambda x: x + (x.round() - x).detach(),
        "xlogy": lambda x: torch.xlogy(x.detach(), x.abs() + 1),
        "square relu": lambda x: F.relu(x).square(),
        "swiglu": lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
        "aminmax": lambda x: torch.stack(torch.aminmax(x, dim=-1)),
        "var_mean": lambda x: torch.stack(torch.var_mean(x, dim=(0, 1))),
        "norm 1": lambda x: x.norm(p=1, dim=-1),
        "norm inf": lambda x: x.norm(p=float("inf")),
        "norm 3": lambda x: torch.linalg.vector_norm(x, 3, dim=1),
        "nanmean": lambda x: x.nanmean(1),
        "cummin": lambda x: x.cummin(1).values,
        "min tokens": lambda x: x.min(1).values,
        "min of all": lambda x: x.min(),
        "prod tokens": lambda x: x.prod(1),
        "cumprod tokens": lambda x: x.cumprod(1),
        "trapezoid": lambda x: torch.trapezoid(x, dim=1),
        "distance of all": lambda x: torch.dist(x, x.detach() * 2),
        "tile": lambda x: x.tile(1, 1, 2),
        "rotate": lambda x: x.rot90(1, (1, 2)),
        "stack of parts": lambda x: torch.stack(x.unbind(0), 1),
        "parts of tokens": lambda x: torch.cat(x.tensor_split(3, 1)[::-1], 1),
        "written slice": lambda x: x.slice_scatter(x[:, :100] * 2, 1, 50, 150),
        "written part": lambda x: x.select_scatter(x[:, 0] * 2, 1, 3),
        "shifted tokens": lambda x: F.pad(x, (0, 0, 1, -1)),
        "rotary halves": lambda x: x * 0.5 + torch.cat((-x[..., 320:], x[..., :320]), -1) * 0.8,
        "unfolded tokens": lambda x: x.unfold(1, 16, 8).mean(-1),
        "picked positions": lambda x: x[torch.arange(24, device=gpu)[:, None], ids(400, 24, 60)],
        "picked columns": lambda x: x[:, :, ids(640, 100)],
        "taken": lambda x: torch.take(x, ids(1_000_000, 500_000)),
        "weighted rows": lambda x: (x * x.mean(-1, keepdim=True).softmax(1)).sum(1),
        "layer norm of two": lambda x: F.layer_norm(x, (400, 640)),
        "instance norm 1d": lambda x: F.instance_norm(x),
        "renormalized": lambda x: x.renorm(2, 2, 1.0),
        "unnormalized distances": lambda x: torch.cdist(x.float(), x.float()[:, :50], p=float("inf")),
    },
    lambda dtype: [floats(*TOKENS, dtype=dtype)],
)
over(
    {
        "exp double": torch.exp,
        "mean double": lambda x: x.mean(1),
        "product double": lambda x: x @ x.mT,
        "softmax double": lambda x: x.softmax(-1),
        "attend double": lambda x: F.scaled_dot_product_attention(*x.view(12, 256, 3, 8, 32).permute(2, 0, 3, 1, 4)),
    },
    lambda dtype: [floats(12, 256, 768, dtype=dtype)],
    (f64,),
)
over(
    {
        "class weights": lambda x, t: F.cross_entropy(x, t, weight=torch.ones(3000, device=gpu, dtype=x.dtype)),
        "soft targets": lambda x, t: F.cross_entropy(x, x.detach().softmax(-1)),
        "loss of each": lambda x, t: F.cross_entropy(x, t, reduction="none"),
        "sum of losses": lambda x, t: F.cross_entropy(x, t, reduction="sum", ignore_index=5),
        "log target": lambda x, t: F.kl_div(
            x.log_softmax(-1), x.detach().flip(0).log_softmax(-1), log_target=True, reduction="batchmean"
        ),
        "hinge embedding": lambda x, t: F.hinge_embedding_loss(x, torch.ones_like(x)),
        "margin of classes": lambda x, t: F.cross_entropy((x - F.one_hot(t, 3000) * 0.3) * 30, t),
        "scattered value": lambda x, t: torch.zeros_like(x).scatter(1, t[:, None], 1.0) * x,
        "reduced rows": lambda x, t: torch.zeros(500, 3000, device=gpu, dtype=x.dtype).index_reduce(
            0, t % 500, x, "amax"
        ),
        "mean of rows": lambda x, t: torch.zeros(500, 3000, device=gpu, dtype=x.dtype).index_reduce(
            0, t % 500, x, "mean"
        ),
        "product of rows": lambda x, t: torch.ones(500, 3000, device=gpu, dtype=x.dtype).scatter_reduce(
            0, (t % 500)[:, None].expand(-1, 3000), x, "prod"
        ),
        "written rows": lambda x, t: x.index_copy(0, torch.arange(600, device=gpu), x[:600] * 2),
        "log probabilities": lambda x, t: torch.distributions.Categorical(logits=x).log_prob(t),
        "entropy of classes": lambda x, t: torch.distributions.Categorical(logits=x).entropy(),
    },
    lambda dtype: [floats(6000, 3000, dtype=dtype), ids(3000, 6000)],
)
over(
    {
        "channels softmax": lambda x: x.softmax(1),
        "channels log_softmax": lambda x: x.log_softmax(1),
        "loss of pixels": lambda x: F.cross_entropy(x, ids(48, 12, 96, 96), ignore_index=0),
        "pooled by four": lambda x: F.avg_pool2d(x, 5, 4, 2, count_include_pad=False),
        "dilated pool": lambda x: F.max_pool2d(x, 3, 2, dilation=2),
        "pool to nine": lambda x: F.adaptive_avg_pool2d(x, (9, 7)),
        "bilinear to odd": lambda x: F.interpolate(x, size=(131, 77), mode="bilinear", align_corners=False),
        "nearest down": lambda x: F.interpolate(x, scale_factor=0.5),
        "batch norm in eval": lambda x: F.batch_norm(
            x, torch.zeros(48, device=gpu), torch.ones(48, device=gpu), torch.ones(48, device=gpu).requires_grad_()
        ),
        "mean of channels": lambda x: x.mean(1, keepdim=True),
        "largest channel": lambda x: x.max(1).values,
        "norm of channels": lambda x: F.normalize(x, dim=1),
        "gradients by hand": lambda x: (x[:, :, 1:] - x[:, :, :-1]).square().mean() + x.diff(dim=-1).abs().mean(),
        "patches": lambda x: x.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).flatten(3).contiguous(),
        "columns": lambda x: F.unfold(x, 5, stride=2, padding=2),
        "columns and back": lambda x: F.fold(F.unfold(x, 4, stride=4), (96, 96), 4, stride=4),
        "1x1 convolution": lambda x: F.conv2d(x, torch.ones(96, 48, 1, 1, device=gpu, dtype=x.dtype).requires_grad_()),
        "flat and split": lambda x: torch.cat([one * (2 + at) for at, one in enumerate(x.chunk(4, 1))], 1),
    },
    lambda dtype: [floats(12, 48, 96, 96, dtype=dtype)],
)
over(
    {
        "channels softmax last": lambda x: x.softmax(1),
        "loss of pixels last": lambda x: F.cross_entropy(x, ids(48, 12, 96, 96)),
        "mean of channels last": lambda x: x.mean(1, keepdim=True),
        "pool to nine last": lambda x: F.adaptive_avg_pool2d(x, (9, 7)),
        "columns last": lambda x: F.unfold(x, 5, stride=2, padding=2),
        "1x1 convolution last": lambda x: F.conv2d(
            x, torch.ones(96, 48, 1, 1, device=gpu, dtype=x.dtype).requires_grad_()
        ),
        "group norm and silu last": lambda x: F.silu(F.group_norm(x, 12)),
    },
    lambda dtype: [floats(12, 48, 96, 96, dtype=dtype, last=True)],
)
over(
    {
        "pool 1d": lambda x: F.adaptive_max_pool1d(x, 100),
        "unpool 1d": lambda x: F.max_unpool1d(*F.max_pool1d(x, 2, return_indices=True), 2),
        "circular 1d": lambda x: F.pad(x, (4, 4), mode="circular"),
        "reflect 1d": lambda x: F.pad(x, (4, 4), mode="reflect"),
        "nearest 1d": lambda x: F.interpolate(x, scale_factor=2),
        "1x1 convolution 1d": lambda x: F.conv1d(
            x, torch.ones(200, 100, 1, device=gpu, dtype=x.dtype).requires_grad_()
        ),
        "group norm 1d": lambda x: F.group_norm(x, 10),
    },
    lambda dtype: [floats(16, 100, 6000, dtype=dtype)],
)
over(
    {
        "replicate 3d": lambda x: F.pad(x, (1,) * 6, mode="replicate"),
        "nearest 3d": lambda x: F.interpolate(x, scale_factor=2),
        "trilinear aligned": lambda x: F.interpolate(x, scale_factor=2, mode="trilinear", align_corners=True),
        "pool to max 3d": lambda x: F.adaptive_max_pool3d(x, 5),
        "dropout 3d": lambda x: F.dropout3d(x, 0.2),
        "group norm 3d": lambda x: F.group_norm(x, 4),
    },
    lambda dtype: [floats(2, 16, 40, 48, 56, dtype=dtype)],
)


def heads(batch: int, count: int, length: int, width: int, dtype: torch.dtype, keys: int = 0) -> list[torch.Tensor]:
    return [floats(batch, count, length if at == 0 else keys or length, width, dtype=dtype) for at in range(3)]


def plainly(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **how: object) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, **how)


over(
    {
        "attend with bias": lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=torch.zeros(1, 12, 320, 320, device=gpu, dtype=q.dtype)
        ),
        "attend with learned bias": lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=torch.zeros(1, 12, 320, 320, device=gpu, dtype=q.dtype).requires_grad_()
        ),
        "attend with dropout": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),
        "attend plainly": plainly,
        "attend plainly with mask": lambda q, k, v: plainly(
            q, k, v, attn_mask=torch.ones(320, 320, dtype=torch.bool, device=gpu).tril()
        ),
        "attend plainly and causally": lambda q, k, v: plainly(q, k, v, is_causal=True),
        "attend by hand": lambda q, k, v: (q @ k.mT / 8).softmax(-1) @ v,
        "attend by einsum": lambda q, k, v: torch.einsum(
            "bhqk,bhkd->bqhd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1), v
        ),
        "attend grouped with mask": lambda q, k, v: F.scaled_dot_product_attention(
            q, k[:, :4], v[:, :4], attn_mask=torch.ones(320, 320, dtype=torch.bool, device=gpu).tril(), enable_gqa=True
        ),
    },
    lambda dtype: heads(6, 12, 320, 64, dtype),
    (f32, bf16),
)
over(
    {
        "attend width 72": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    },
    lambda dtype: heads(6, 12, 320, 72, dtype),
    (f32, bf16, f16),
)
over(
    {
        "attend from few": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        "attend from few with mask": lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=(torch.arange(1500, device=gpu) < 900)[None]
        ),
    },
    lambda dtype: heads(6, 12, 16, 64, dtype, 1500),
    (f32, bf16),
)
case(
    "attention module",
    lambda: [floats(16, 250, 256)],
    lambda x: nn.MultiheadAttention(256, 8, batch_first=True, device=gpu)(x, x, x)[0],
)
case(
    "attention module without weights",
    lambda: [floats(16, 250, 256)],
    lambda x: nn.MultiheadAttention(256, 8, batch_first=True, device=gpu)(x, x, x, need_weights=False)[0],
)
case("lstm cell", lambda: [floats(512, 384)], lambda x: nn.LSTMCell(384, 512, device=gpu)(x)[0])
case("gru cell", lambda: [floats(512, 384)], lambda x: nn.GRUCell(384, 512, device=gpu)(x))
case(
    "weighted bag",
    lambda: [floats(9000, 96), ids(9000, 400, 30)],
    lambda w, t: F.embedding_bag(t, w, mode="sum", per_sample_weights=torch.ones(400, 30, device=gpu)),
)
case(
    "embedding of bounded rows",
    lambda: [floats(9000, 96), ids(9000, 400, 30)],
    lambda w, t: F.embedding(t, w.detach().clone(), max_norm=1.0),
)
case("to float8", lambda: [floats(4096, 2048, dtype=bf16, grad=False)], lambda x: x.to(torch.float8_e4m3fn))
case(
    "scaled to int8",
    lambda: [floats(4096, 2048, dtype=bf16, grad=False)],
    lambda x: (x / x.abs().amax(-1, keepdim=True) * 127).round().to(torch.int8),
)
case("from int8", lambda: [ids(100, 4096, 2048).to(torch.int8)], lambda x: x.to(bf16) * 0.02)
case(
    "pictures from bytes",
    lambda: [ids(255, 16, 200, 300, 3).to(torch.uint8)],
    lambda x: x.permute(0, 3, 1, 2).float() / 255,
)
case("sum of bytes", lambda: [ids(255, 4000, 3000).to(torch.uint8)], lambda x: x.sum(-1))
case("mean of 32 bits", lambda: [ids(255, 4000, 3000).int()], lambda x: x.float().mean(0))
case("mode", lambda: [ids(50, 2000, 1000)], lambda t: t.mode(-1).values)
case(
    "counts with weights",
    lambda: [ids(900, 400_000), floats(400_000, grad=False)],
    lambda t, w: torch.bincount(t, w, minlength=900),
)
case("places", lambda: [ids(2, 3000, 1000)], lambda t: torch.argwhere(t))
case("unique of floats", lambda: [ids(700, 600_000).float()], lambda t: t.unique())
case("unique counted", lambda: [ids(700, 600_000)], lambda t: t.unique(return_counts=True))
case("largest of long rows", lambda: [floats(2000, 9000)], lambda x: x.topk(64, -1).values)
case("sort half rows", lambda: [floats(300, 12_000, dtype=f16, grad=False)], lambda x: x.sort(-1).values)
case("kth of rows", lambda: [floats(3000, 1500)], lambda x: x.kthvalue(100, -1).values)
case("median of tokens", lambda: [floats(24, 400, 300)], lambda x: x.median(1).values)
case("gamma draws", lambda: [floats(1000, 1000)], lambda x: torch.distributions.Gamma(x.exp(), 1.0).rsample())
case("beta draws", lambda: [floats(1000, 500)], lambda x: torch.distributions.Beta(x.exp(), x.exp() + 1).rsample())
case("normal draws", lambda: [floats(2000, 1000)], lambda x: torch.normal(x.detach(), x.detach().abs()) * x)
case(
    "draws with replacement",
    lambda: [floats(256, 20_000, grad=False)],
    lambda x: torch.multinomial(x.softmax(-1), 64, replacement=True),
)
case("product of complex numbers", lambda: [torch.view_as_complex(floats(300, 300, 300, 2))], lambda x: x * x.conj())
case("transform of volumes", lambda: [floats(4, 64, 64, 64)], lambda x: torch.fft.rfftn(x, dim=(1, 2, 3)))
case(
    "transform and back", lambda: [floats(8, 3, 250, 250)], lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=(250, 250))
)
case("transform of columns", lambda: [floats(512, 4096)], lambda x: torch.fft.fft(x, dim=0).real)
case("hermitian transform", lambda: [torch.view_as_complex(floats(64, 64, 300, 2))], lambda x: torch.fft.hfft(x))
for at in ((700, 700), (40, 90, 90)):
    tail = "x".join(map(str, at))
    case(f"condition {tail}", lambda at=at: square(*at), lambda a: torch.linalg.cond(a))
    case(f"nuclear norm {tail}", lambda at=at: square(*at), lambda a: torch.linalg.matrix_norm(a, "nuc"))
    case(
        f"lu and solve {tail}",
        lambda at=at: square(*at),
        lambda a: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), torch.ones_like(a[..., :1])),
    )
    case(f"eigenvectors {tail}", lambda at=at: square(*at), lambda a: torch.linalg.eigh(a)[1])
    case(f"full svd {tail}", lambda at=at: square(*at), lambda a: torch.linalg.svd(a)[0])
    case(f"pseudo-inverse {tail}", lambda at=at: square(*at), lambda a: torch.linalg.pinv(a, hermitian=True))
    case(f"inverse double {tail}", lambda at=at: [square(*at)[0].detach().double().requires_grad_()], torch.linalg.inv)
case("cholesky double", lambda: [square(900, 900)[0].detach().double().requires_grad_()], torch.linalg.cholesky)
case(
    "chain",
    lambda: [floats(2000, 300), floats(300, 1000), floats(1000, 50)],
    lambda a, b, c: torch.linalg.multi_dot([a, b, c]),
)
case("cross product", lambda: [floats(500_000, 3), floats(500_000, 3)], lambda a, b: torch.linalg.cross(a, b))
case("addbmm", lambda: [floats(32, 200, 300), floats(32, 300, 200)], lambda a, b: torch.addbmm(a[0, :, :200], a, b))
case("product with vector", lambda: [floats(64, 500, 700), floats(700)], torch.matmul)
case(
    "bilinear form",
    lambda: [floats(64, 500, 200), floats(200, 200)],
    lambda x, w: torch.einsum("bid,de,bje->bij", x, w, x),
)
case("block diagonal", lambda: [floats(300, 200), floats(500, 400)], lambda a, b: torch.block_diag(a, b, a))
case("diagonal matrices", lambda: [floats(3000, 100)], torch.diag_embed)
case("distances of pairs", lambda: [floats(2500, 40)], F.pdist)
case("weight norm", lambda: [floats(800, 900), floats(800, 1)], lambda v, g: torch._weight_norm(v, g, 0))
case(
    "float32 sparse rows",
    lambda: [floats(3000, 500)],
    lambda x: torch.sparse.mm(
        torch.sparse_coo_tensor(ids(2000, 2, 60_000), torch.ones(60_000, device=gpu), (2000, 3000)).coalesce(), x
    ),
)
case(
    "made dense",
    lambda: [floats(60_000, grad=False)],
    lambda v: torch.sparse_coo_tensor(ids(2000, 2, 60_000), v, (2000, 3000)).to_dense(),
)
case(
    "ctc",
    lambda: [floats(300, 16, 80), ids(79, 16, 40) + 1],
    lambda x, t: F.ctc_loss(
        x.log_softmax(-1), t, torch.full((16,), 300, device=gpu), torch.full((16,), 40, device=gpu)
    ),
)
case(
    "norms of gradients",
    lambda: [floats(500, 1000, grad=False) for _ in range(12)],
    lambda *all_of_them: torch.stack(torch._foreach_norm(list(all_of_them))).norm(),
)
case(
    "moving average of all",
    lambda: [floats(500, 1000, grad=False) for _ in range(12)],
    lambda *all_of_them: torch._foreach_lerp_(list(all_of_them[:6]), list(all_of_them[6:]), 0.1),
)
