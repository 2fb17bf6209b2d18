"""The lives behind a synthetic run: when blocks come and go, whose they are, and where they lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuledger.model.accounts import CATEGORIES, PHASES

MIB = 1 << 20
GIB = 1 << 30
START_NS = 1_760_000_000_000_000_000
STEP_NS = 250_000_000
RECORDED_STEPS = 3
STEP_SHARES = {
    "activation": 0.38,
    "temporary": 0.30,
    "gradient": 0.12,
    "activation_gradient": 0.11,
    "optimizer_state": 0.05,
    "input": 0.02,
    "workspace": 0.01,
    "communication": 0.01,
}
SETUP_SHARES = {"weight": 0.9, "buffer": 0.06, "other": 0.04}


@dataclass
class Blocks:
    """Lives in key space; ``inf`` where a block is never given back."""

    category: np.ndarray
    phase: np.ndarray
    step: np.ndarray
    module_id: np.ndarray
    bytes: np.ndarray
    requested: np.ndarray
    born: np.ndarray
    given_back: np.ndarray
    completed: np.ndarray


def _draw(rng: np.random.Generator, shares: dict[str, float], count: int) -> np.ndarray:
    codes = np.array([CATEGORIES.index(name) for name in shares])
    weights = np.array(list(shares.values()))
    return rng.choice(codes, count, p=weights / weights.sum())


def draw_lives(rng: np.random.Generator, count: int, modules: int) -> Blocks:
    kept = min(count, max(1, count // 8))
    category = np.concatenate([_draw(rng, SETUP_SHARES, kept), _draw(rng, STEP_SHARES, count - kept)])
    step = np.concatenate([np.zeros(kept, np.int64), rng.integers(1, RECORDED_STEPS + 1, count - kept)])
    late_state = (category == CATEGORIES.index("optimizer_state")) & (step > 1)
    category[late_state] = CATEGORIES.index("temporary")
    phase, start, end = _when(rng, category)
    start[:kept] = rng.uniform(0, 1, kept)
    start[: kept // 20] = -0.5
    end[:kept] = np.inf
    phase[:kept] = PHASES.index("setup")
    end[(category == CATEGORIES.index("gradient")) & (step == RECORDED_STEPS)] = np.inf
    place = np.where(phase == PHASES.index("backward"), 0.9 - start, start)
    sizes = _sizes(count)
    allocated = sizes[rng.integers(0, sizes.size, count)]
    given_back = step + end
    late = np.where(rng.uniform(size=count) < 0.01, 1e-3, 1e-10)
    return Blocks(
        category=category,
        phase=phase,
        step=step,
        module_id=_owner(rng, phase, place, modules),
        bytes=allocated,
        requested=allocated - rng.integers(0, 512, count),
        born=step + start,
        given_back=given_back,
        completed=given_back + late,
    )


def _when(rng: np.random.Generator, category: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the phase, and birth and end within the step, that fit each category."""
    count = category.size
    u = rng.uniform(size=count)
    phase = np.full(count, PHASES.index("forward"), np.int64)
    start, end = 0.05 + 0.4 * u, np.full(count, np.inf)

    def of(name: str) -> np.ndarray:
        return category == CATEGORIES.index(name)

    end[of("activation")] = (0.9 - start)[of("activation")]
    in_backward = of("gradient") | of("activation_gradient") | of("communication") | (of("temporary") & (u > 0.5))
    phase[in_backward] = PHASES.index("backward")
    start[in_backward] = 0.45 + 0.395 * rng.uniform(size=in_backward.sum())
    short = of("activation_gradient") | of("communication") | of("temporary")
    limit = np.where(in_backward, 0.85, 0.45)
    end[short] = (start + (limit - start) * 0.3 * u)[short] + 1e-9
    end[of("gradient")] = 1.0 + 0.04 * u[of("gradient")]
    phase[of("optimizer_state")] = PHASES.index("optimizer")
    start[of("optimizer_state")] = 0.86 + 0.08 * u[of("optimizer_state")]
    phase[of("input")] = PHASES.index("between")
    start[of("input")] = 0.01 + 0.03 * u[of("input")]
    end[of("input")] = 0.951 + 0.01 * u[of("input")]
    return phase, start, end


def _owner(rng: np.random.Generator, phase: np.ndarray, place: np.ndarray, modules: int) -> np.ndarray:
    """Return the module at work at each place of the forward or its mirror; -1 outside modules."""
    if modules == 0:
        return np.full(phase.size, -1)
    anywhere = rng.integers(0, modules, phase.size)
    walking = np.isin(phase, [PHASES.index("forward"), PHASES.index("backward")])
    at_work = np.clip(((place - 0.05) / 0.4 * modules).astype(np.int64), 0, modules - 1)
    return np.where(phase == PHASES.index("between"), -1, np.where(walking, at_work, anywhere))


def _sizes(count: int) -> np.ndarray:
    """Return the sizes blocks can have; all blocks together stay below 128 GiB."""
    mean = min(16 * MIB, 128 * GIB // max(count, 1))
    sizes = (8 * mean) >> np.arange(16)
    return np.unique(np.maximum(sizes // 512 * 512, 512))


def place(lives: Blocks) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return each block's address and the segments: blocks of one size share slots, slots share segments."""
    address = np.zeros(lives.bytes.size, np.int64)
    pieces: list[np.ndarray] = []
    base = 0x7F00_0000_0000
    for size in np.unique(lives.bytes):
        mine = np.flatnonzero(lives.bytes == size)
        slot = _slots(lives.born[mine], lives.completed[mine])
        per_segment = max(1, (2 * MIB if size <= MIB else 20 * MIB) // int(size))
        segment_bytes = -(-per_segment * int(size) // (2 * MIB)) * 2 * MIB
        number = slot // per_segment
        address[mine] = base + number * segment_bytes + slot % per_segment * size
        born = np.full(int(number.max()) + 1, np.inf)
        np.minimum.at(born, number, lives.born[mine])
        place = base + np.arange(born.size) * segment_bytes
        pieces.append(np.stack([place, np.full(born.size, segment_bytes), born, np.full(born.size, size <= MIB)]))
        base += (born.size + 1) * segment_bytes
    joined = np.concatenate(pieces, axis=1) if pieces else np.zeros((4, 0))
    keys = ("address", "bytes", "born", "small")
    return address, {k: v if k == "born" else v.astype(np.int64) for k, v in zip(keys, joined, strict=True)}


def _slots(born: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Return a slot per life such that lives in one slot never overlap, with as few slots as are alive at once."""
    by_birth, by_end = np.argsort(born, kind="stable"), np.argsort(ended, kind="stable")
    rank = np.arange(born.size)
    alive = rank + 1 - np.searchsorted(ended[by_end], born[by_birth], side="left")
    width = int(alive.max())
    birth_rank = np.empty_like(rank)
    birth_rank[by_birth] = rank
    before = np.where(rank < width, rank, birth_rank[by_end[rank - width]])
    while True:
        further = before[before]
        if np.array_equal(further, before):
            break
        before = further
    slot = np.empty_like(rank)
    slot[by_birth] = before
    return slot


class Order:
    """Indices and times of all events, from their keys."""

    def __init__(self, lives: Blocks, segments: dict[str, np.ndarray] | None) -> None:
        taken = segments["born"] - 1e-10 if segments else np.zeros(0)
        completions = lives.completed if segments else np.zeros(0)
        self.keys = np.sort(
            np.concatenate([k[(k >= 0) & np.isfinite(k)] for k in (lives.born, lives.given_back, completions, taken)])
        )
        self.taken = taken

    def index(self, keys: np.ndarray) -> np.ndarray:
        """Return the index of events with these keys; -1 before the recording."""
        return np.where(keys < 0, -1, np.searchsorted(self.keys, keys))

    def last_before(self, key: float) -> int:
        """Return the index of the last event before ``key``; -1 when there is none."""
        return int(np.searchsorted(self.keys, key)) - 1

    @staticmethod
    def time_ns(keys: np.ndarray | float) -> np.ndarray:
        """Return host times; whole microseconds, so ties happen."""
        finite = np.where(np.isfinite(keys), keys, 0)
        return START_NS + (finite * (STEP_NS // 1000)).astype(np.int64) * 1000
