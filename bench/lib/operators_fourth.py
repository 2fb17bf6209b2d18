"""Operators of sizes, dtypes and options that three lists lack, estimated before they ran: for operator_memory.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from operator_cases import List, bf16, f16, f32, floats, gpu, i64, ids
from operators_first import square

FOURTH = List()
case, over = FOURTH.case, FOURTH.over

for count in (3_000, 70_000, 2_500_000, 40_000_000):
    case(f"places of {count}", lambda count=count: [ids(2, count)], lambda t: t.nonzero())
    case(f"picked of {count}", lambda count=count: [floats(count)], lambda x: x[x > 0])
    case(f"selected of {count}", lambda count=count: [floats(count, grad=False)], lambda x: x.masked_select(x > 0))
    case(f"written where of {count}", lambda count=count: [floats(count)], lambda x: x.masked_scatter(x > 0, x * 2))
for count in (2_000, 150_000, 6_000_000):
    case(f"different of {count}", lambda count=count: [ids(999, count)], lambda t: t.unique())
    case(f"different bytes of {count}", lambda count=count: [ids(99, count).to(torch.uint8)], lambda t: t.unique())
    case(f"different, unsorted, of {count}", lambda count=count: [ids(999, count)], lambda t: t.unique(sorted=False))
    case(
        f"different with places of {count}",
        lambda count=count: [ids(999, count).int()],
        lambda t: t.unique(return_inverse=True),
    )
    case(
        f"runs of {count}",
        lambda count=count: [ids(9, count)],
        lambda t: t.unique_consecutive(return_inverse=True, return_counts=True),
    )
    case(f"order of {count} bytes", lambda count=count: [ids(99, count).to(torch.int8)], lambda t: t.sort())
    case(f"order of {count} halves", lambda count=count: [floats(count, dtype=f16, grad=False)], lambda x: x.argsort())
    case(f"counts of {count}", lambda count=count: [ids(999, count)], lambda t: torch.bincount(t, minlength=1500))
    case(f"bins of {count}", lambda count=count: [floats(count, grad=False)], lambda x: x.histc(1000, -3, 3))
case("different rows", lambda: [ids(5, 40_000, 6)], lambda t: t.unique(dim=0, return_inverse=True))
case("different columns", lambda: [ids(2, 12, 3000)], lambda t: t.unique(dim=1))
case("counts of many", lambda: [ids(5_000_000, 3_000_000)], lambda t: torch.bincount(t))
over(
    {
        "largest 5 of few": lambda x: x.topk(5, -1).values,
        "smallest 200 of few": lambda x: x.topk(200, -1, largest=False).values,
        "largest half of few": lambda x: x.topk(200_000, -1).values,
        "unsorted of few": lambda x: x.topk(1000, -1, sorted=False).values,
        "kth of few": lambda x: x.kthvalue(1000, -1).values,
        "median of few": lambda x: x.median(-1).values,
        "running sums of few": lambda x: x.cumsum(-1),
        "running log sums of few": lambda x: x.logcumsumexp(-1),
        "running maxima of few": lambda x: x.cummax(-1).values,
    },
    lambda dtype: [floats(6, 400_000, dtype=dtype)],
)
over(
    {
        "largest 3 of pixels": lambda x: x.topk(3, 1).values,
        "largest of the flat": lambda x: x.flatten().topk(5000).values,
        "log sums of channels": lambda x: x.logsumexp(1),
        "log sums of pictures": lambda x: x.logsumexp((2, 3)),
        "running products": lambda x: x.cumprod(-1),
        "running log sums": lambda x: x.logcumsumexp(1),
        "mean and variance of rows": lambda x: torch.stack(torch.var_mean(x, dim=-1)),
        "deviation and mean of all": lambda x: torch.stack(torch.std_mean(x)),
        "variance of channels": lambda x: x.var((0, 2, 3)),
        "deviation of pixels": lambda x: x.std(1, unbiased=False),
        "limited rows": lambda x: x.renorm(1, 0, 2.0),
        "limited channels": lambda x: x.renorm(2, 1, 5.0),
        "bilinear by 3": lambda x: F.interpolate(x, scale_factor=3, mode="bilinear"),
        "bilinear down": lambda x: F.interpolate(x, size=(30, 40), mode="bilinear", align_corners=True),
        "nearest by 3": lambda x: F.interpolate(x, scale_factor=3),
        "exact down": lambda x: F.interpolate(x, size=(50, 50), mode="nearest-exact"),
        "bicubic aligned": lambda x: F.interpolate(x, size=(128, 96), mode="bicubic", align_corners=True),
        "smooth by 2": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
        "sampled with border": lambda x: F.grid_sample(
            x, torch.zeros(10, 80, 90, 2, device=gpu, dtype=x.dtype), padding_mode="border", align_corners=False
        ),
        "sampled with reflection": lambda x: F.grid_sample(
            x, (x[:, :2] * 0.1).permute(0, 2, 3, 1), padding_mode="reflection", align_corners=True
        ),
    },
    lambda dtype: [floats(10, 24, 80, 96, dtype=dtype)],
    (f32, f16),
)
over(
    {
        "added to rows": lambda x, t: torch.zeros(900, 320, device=gpu, dtype=x.dtype).index_add(0, t, x),
        "added to columns": lambda x, t: torch.zeros(320, 900, device=gpu, dtype=x.dtype).index_add(1, t, x.T),
        "sums by index": lambda x, t: torch.zeros(900, 320, device=gpu, dtype=x.dtype).scatter_reduce(
            0, t[:, None].expand_as(x), x, "sum"
        ),
        "means by index": lambda x, t: torch.zeros(900, 320, device=gpu, dtype=x.dtype).scatter_reduce(
            0, t[:, None].expand_as(x), x, "mean", include_self=False
        ),
        "maxima by index": lambda x, t: torch.zeros(900, 320, device=gpu, dtype=x.dtype).scatter_reduce(
            0, t[:, None].expand_as(x), x, "amax", include_self=False
        ),
        "written and added": lambda x, t: torch.zeros(900, 320, device=gpu, dtype=x.dtype).index_put(
            (t,), x, accumulate=True
        ),
        "one value of each": lambda x, t: x.gather(1, (t % 320)[:, None]),
        "rows by sparse": lambda x, t: torch.sparse.mm(
            torch.sparse_coo_tensor(
                torch.stack([t % 700, torch.arange(len(t), device=gpu)]), torch.ones(len(t), device=gpu), (700, len(t))
            ),
            x.float(),
        ),
    },
    lambda dtype: [floats(50_000, 320, dtype=dtype), ids(900, 50_000)],
)
for shape in ((3000, 2000, 20), (400, 300, 64), (20_000, 300, 3)):
    tail = "x".join(map(str, shape))
    case(f"distances {tail}", lambda s=shape: [floats(s[0], s[2]), floats(s[1], s[2])], lambda a, b: torch.cdist(a, b))
    case(f"sums of {tail}", lambda s=shape: [floats(s[0], s[2]), floats(s[1], s[2])], lambda a, b: torch.cdist(a, b, 1))
    case(
        f"nearest of {tail}",
        lambda s=shape: [floats(s[0], s[2], grad=False), floats(s[1], s[2], grad=False)],
        lambda a, b: torch.cdist(a, b).topk(5, largest=False).indices,
    )
case("distances of batches", lambda: [floats(12, 500, 30), floats(12, 400, 30)], torch.cdist)
case("pairs by 1", lambda: [floats(900, 20)], lambda x: F.pdist(x, 1))
case("pairs by infinity", lambda: [floats(1200, 10)], lambda x: F.pdist(x, float("inf")))
case("draws of one", lambda: [floats(1, 3_000_000, grad=False)], lambda x: torch.multinomial(x.abs(), 1000))
case("draws of rows", lambda: [floats(900, 2000, grad=False)], lambda x: torch.multinomial(x.abs(), 10))
case("draws of one again", lambda: [floats(500_000, grad=False)], lambda x: torch.multinomial(x.abs(), 9999, True))
case("draws of half", lambda: [floats(64, 30_000, dtype=f16, grad=False)], lambda x: torch.multinomial(x.abs(), 1))
for size in ((500, 300), (20, 60, 60)):
    tail = "x".join(map(str, size))
    case(f"inverse of {tail}", lambda size=size: [floats(*size)], torch.linalg.pinv)
    case(f"rank of {tail}", lambda size=size: [floats(*size, grad=False)], torch.linalg.matrix_rank)
    case(f"svd of {tail}", lambda size=size: [floats(*size)], lambda a: torch.linalg.svd(a, full_matrices=False)[1])
case("least squares of many", lambda: [floats(30, 90, 20), floats(30, 90, 3)], lambda a, b: torch.linalg.lstsq(a, b)[0])
case("root of a matrix", lambda: square(300, 300), lambda a: torch.linalg.eigh(a)[1].mul(2) @ a)
case("exponential", lambda: square(8, 100, 100), torch.matrix_exp)


def rows(dtype: torch.dtype = f32) -> torch.Tensor:
    """Return a sparse matrix in the COO layout."""
    return torch.sparse_coo_tensor(ids(4000, 2, 120_000), torch.ones(120_000, device=gpu, dtype=dtype), (4000, 4000))


case("sparse product", lambda: [floats(4000, 200)], lambda x: rows() @ x)
case("sparse product, merged", lambda: [floats(4000, 200)], lambda x: torch.sparse.mm(rows().coalesce(), x))
case("rows compressed", lambda: [floats(4000, 200)], lambda x: rows().coalesce().to_sparse_csr() @ x)
case("merged", lambda: [ids(4000, 2, 500_000)], lambda t: torch.sparse_coo_tensor(t, t[0].float()).coalesce().values())
case("sparse of dense", lambda: [floats(2000, 3000, grad=False)], lambda x: x.relu().to_sparse().values())
case("sparse sums", lambda: [floats(120_000, grad=False)], lambda v: torch.sparse.sum(rows(), 1).to_dense())
case("sparse and dense", lambda: [floats(4000, 4000)], lambda x: (rows() + rows()).to_dense() * x)
case("sparse table", lambda: [floats(30_000, 96), ids(30_000, 900)], lambda w, t: F.embedding(t, w, sparse=True))
case("powers of rows", lambda: [floats(600, 900)], lambda x: torch.stack([x**n for n in range(5)]))
case("products of all", lambda: [floats(2_000_000)], lambda x: x.prod())
case("products of rows", lambda: [floats(3000, 500)], lambda x: x.prod(-1))
case("integers to floats", lambda: [ids(9, 3000, 700)], lambda t: t.to(bf16).mean(-1))
case("means of masks", lambda: [floats(3000, 700, grad=False)], lambda x: (x > 0).float().mean(0))
case("counts of nonzeros", lambda: [ids(2, 3000, 700)], lambda t: t.count_nonzero(1))
case("joined ranges", lambda: [ids(9, 400)], lambda t: torch.repeat_interleave(torch.arange(400, device=gpu), t))
case("products of pairs", lambda: [ids(9, 900)], lambda t: torch.combinations(t, 2))
case("grid of places", lambda: [ids(9, 900), ids(9, 800)], lambda a, b: torch.cartesian_prod(a, b))
case("lower places", lambda: [ids(3, 3)], lambda t: torch.tril_indices(1500, 1500, device=gpu, dtype=i64))
case("tables by place", lambda: [ids(600, 500_000)], lambda t: torch.searchsorted(t.sort().values, t))
case("interpolated quantile", lambda: [floats(300, 5000)], lambda x: x.quantile(0.3, dim=1))
case("quantile without nan", lambda: [floats(300, 5000)], lambda x: x.nanquantile(0.3, dim=0))
