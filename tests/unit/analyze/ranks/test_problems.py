"""What went wrong on some ranks is said in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpuledger.analyze.ranks.problems import list_problems
from gpuledger.model.manifest import RankManifest
from gpuledger.model.run import KeptRank, Rank
from gpuledger.model.schema.tables import TABLES


def rank(number: int, *, oom_ns: int | None = None, **facts: Any) -> Rank:
    value = {"schema_version": 1, "rank": number, "status": "closed", "steps_seen": 10, **facts}
    counters = TABLES["counters"].arrow_schema().empty_table()
    if oom_ns is not None:
        value["oom"] = [{"tried_bytes": 1}]
        row = {field.name: 0 for field in counters.schema} | {"t_ns": oom_ns, "reason": "oom"}
        counters = pa.Table.from_pylist([row], counters.schema)
    return KeptRank(number, Path(), RankManifest.from_json(value), tables={"counters": counters})


def ended(number: int, end_ns: int | None, **facts: Any) -> Rank:
    """Return a rank with a process that ended; ``signal`` is that which ended it."""
    status = {"exit_status": 128 + facts["signal"]} if "signal" in facts else {}
    return rank(number, **{"has_all_steps": True, "exit_began_ns": end_ns, "recorder": "dispatch", **status, **facts})


def of_ray(number: int, **facts: Any) -> Rank:
    """Return a rank with a process that Ray ended."""
    return ended(number, None, **{"has_all_steps": False, "is_ended_by_parent": True, "exit_status": 1, **facts})


HOUR = 3_600_000_000_000
SGD = {"name": "SGD"}


def pause(start_ns: int) -> list[dict[str, Any]]:
    return [{"reason": "open", "start_ns": start_ns, "duration_ns": 1}]


def begun(*starts_ns: int, oom: bool = False) -> list[Rank]:
    return [
        rank(
            number,
            world={"size": len(starts_ns), "rank": number},
            pauses=pause(start_ns),
            oom=[{"t_ns": start_ns + 1}] if oom else [],
        )
        for number, start_ns in enumerate(starts_ns)
    ]


def of_world(size: int, *numbers: int) -> list[Rank]:
    return [rank(number, world={"size": size, "rank": number}) for number in numbers]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([rank(0), rank(1)], []),
        (of_world(2, 0, 1), []),
        (of_world(3, 0, 2), ["Rank 1 of 3 has no recording."]),
        (of_world(4, 0), ["Ranks 1, 2 and 3 of 4 have no recording."]),
        ([rank(0), rank(1, status="cut off")], ["Rank 1 was killed."]),
        (
            [rank(0), rank(1), rank(2, steps_seen=7)],
            ["The ranks took different numbers of steps: most took 10, rank 2"],
        ),
        (
            [*map(rank, range(3)), rank(3, steps_seen=7), rank(4, steps_seen=7)],
            ["The ranks took different numbers of steps: most took 10, ranks 3 and 4 took 7 steps."],
        ),
        (
            [*map(rank, range(3)), rank(3, steps_seen=7), rank(4, steps_seen=9)],
            ["The ranks took different numbers of steps: most took 10, ranks 3 and 4 took 7 to 9 steps."],
        ),
        (
            [rank(0, steps_seen=6), rank(1, steps_seen=1_000)],
            ["The ranks took different numbers of steps: from 6 (rank 0) to 1,000 (rank 1)."],
        ),
        ([rank(0, steps_seen=6, joins_ranks=True), rank(1, joins_ranks=True)], []),
        (
            [rank(0, steps_seen=6, joins_ranks=True), rank(1)],
            ["The ranks took different numbers of steps: from 6 (rank 0) to 10 (rank 1)."],
        ),
        ([rank(0, optimizers=[SGD]), rank(1, optimizers=[SGD]), rank(2, steps_seen=2)], []),
        (
            [rank(0, optimizers=[SGD]), rank(1, optimizers=[SGD], steps_seen=9), rank(2, steps_seen=2)],
            ["The ranks took different numbers of steps: from 9 (rank 1) to 10 (rank 0)."],
        ),
        ([rank(0, oom_ns=20), rank(1, oom_ns=10)], ["Rank 1 ran out of memory first, then rank 0."]),
        (
            [rank(0, status="cut off"), rank(1, oom_ns=10)],
            ["Rank 1 ran out of memory first. Rank 0 ended because of it"],
        ),
        (
            [rank(0, oom=[{"t_ns": 20, "step": 812}]), rank(1, oom=[{"t_ns": 10, "step": 1812}])],
            ["Rank 1 ran out of memory first, in step 1,812, then rank 0."],
        ),
        ([rank(0, oom=[{}]), rank(1, oom=[{"t_ns": 10}])], ["Ranks 0 and 1 ran out of memory."]),
        ([rank(0), rank(1), rank(2, steps_seen=0)], ["Rank 2 took no step, other ranks up to 10."]),
        ([rank(0, steps_seen=0), rank(1, steps_seen=0)], []),
        (
            [rank(0), rank(1), rank(2, steps_seen=7), rank(3, steps_seen=0)],
            ["Rank 3 took no step", "The ranks took different numbers of steps: most took 10, rank 2 took 7 steps."],
        ),
        (
            [*of_world(2, 0, 1), rank(2, world={"size": 3, "rank": 2})],
            ["The ranks are of jobs with different numbers of ranks: 2, 3."],
        ),
        (
            [rank(number, devices=[{"device_idx": 0, "name": name}]) for number, name in enumerate(("H100", "H200"))],
            ["The ranks ran on different GPUs: H100, H200."],
        ),
        (
            [
                *of_world(5, 0, 1),
                rank(2, oom_ns=10, status="cut off", steps_seen=4),
                rank(3, status="cut off", steps_seen=0),
            ],
            [
                "Rank 2 ran out of memory first. Rank 3 ended because of it",
                "Rank 4 of 5 has no recording.",
                "Rank 3 took no step",
                "The ranks took different numbers of steps: most took 10, rank 2 took 4 steps.",
            ],
        ),
        (
            [
                ended(0, 30, exit_status=1, exit_error="RuntimeError", exit_lost_peer=True),
                ended(1, 10, exit_status=0),
                ended(2, 40, signal=15),
                ended(3, 50, exit_status=0),
            ],
            [
                "Rank 1 exited with status 0 before the others. "
                "Ranks 0 and 2 ended because of it: RuntimeError or killed by SIGTERM."
            ],
        ),
        (  # it lost a rank that failed, which was before it
            [
                ended(0, 30, exit_status=1, exit_error="RuntimeError", exit_lost_peer=True),
                ended(1, 10, exit_status=0),
                ended(2, 20, exit_status=1, exit_error="KeyError"),
            ],
            ["Rank 2 failed first: KeyError, after 10 steps. Rank 0 ended because of it: RuntimeError."],
        ),
        (  # no rank had left before
            [
                ended(0, 30, exit_status=1, exit_error="RuntimeError", exit_lost_peer=True),
                ended(1, 40, exit_status=0),
            ],
            ["Rank 0 failed: RuntimeError, after 10 steps. The other ranks did not fail."],
        ),
        (
            [ended(0, 20, signal=15, exit_error="RuntimeError"), ended(1, 10, signal=9, has_all_steps=False)],
            [
                "Rank 1 failed first: killed by SIGKILL, after at least 10 steps. "
                "Rank 0 ended because of it: RuntimeError."
            ],
        ),
        (
            [ended(0, 20, signal=15), ended(1, 10, exit_status=7), ended(2, 21, signal=15)],
            [
                "Rank 1 failed first: exit status 7, after 10 steps. "
                "Ranks 0 and 2 ended because of it: killed by SIGTERM."
            ],
        ),
        (
            [ended(0, 20, exit_error="KeyError"), ended(1, None, signal=15)],
            ["Rank 0 failed first: KeyError, after 10 steps. Rank 1 ended because of it: killed by SIGTERM."],
        ),
        ([ended(0, 20, exit_status=0), ended(1, 10, exit_status=7)], ["Rank 1 failed: exit status 7, after 10 steps."]),
        (
            [
                ended(0, 30, exit_status=4),
                ended(1, 10, signal=11),
                ended(2, 20, exit_error="RuntimeError", exit_lost_peer=True),
                ended(3, 20, exit_error="KeyError"),
            ],
            [
                "Rank 1 failed first: killed by SIGSEGV, after 10 steps. Rank 2 ended because of it: RuntimeError. "
                "Ranks 0 and 3 ended after it: exit status 4 or KeyError."
            ],
        ),
        ([ended(0, 20, signal=15), ended(1, 10, signal=15)], ["Ranks 0 and 1 were killed by SIGTERM."]),
        (
            [ended(0, 20, exit_status=1), ended(1, None, exit_status=7)],
            ["2 ranks failed, and which was the first is not known: rank 0 (exit status 1), rank 1 (exit status 7)."],
        ),
        (
            [ended(0, 20, exit_error="RuntimeError", world={"size": 2, "rank": 0})],
            ["Rank 0 ended with RuntimeError.", "Rank 1 of 2 has no recording."],
        ),
        (
            [ended(0, 20), ended(1, None, exit_began_ns=None, has_all_steps=False)],
            ["Rank 1 was killed. The other ranks closed their recordings."],
        ),
        (
            [ended(0, 20, exit_status=0, oom=[{"t_ns": 1}]), ended(1, 10, exit_status=7)],
            ["Rank 0 ran out of memory first.", "Rank 1 failed: exit status 7"],
        ),
        ([ended(0, 20, exit_status=1)], []),
        (
            [ended(0, 20, exit_status=1, exit_error="DistStoreError", launched_ranks=2)],
            ["Rank 0 failed: DistStoreError", "Rank 1 of 2 has no recording."],
        ),
        ([ended(0, 20, launched_ranks=2, world={"size": 1, "rank": 0})], []),
        (
            [
                ended(number, ns, signal=signal, world={"size": 2, "rank": number % 2})
                for number, ns, signal in ((0, 10, 9), (1, 20, 15), (2, 40, 15), (3, 30, 11))
            ],
            [
                "Rank 0 failed first of ranks 0 and 1: killed by SIGKILL",
                "Rank 3 failed first of ranks 2 and 3: killed by SIGSEGV, after 10 steps. Rank 2",
            ],
        ),
        ([rank(number, world={"size": 2, "rank": number % 2}, steps_seen=10 - number // 2) for number in range(4)], []),
        (begun(0, HOUR // 3), []),
        (begun(2 * HOUR, 0), ["Rank 0 began 2.00 h after rank 1. Their clocks differ"]),
        (
            begun(2 * HOUR, 0, oom=True),
            ["Ranks 0 and 1 ran out of memory.", "Rank 0 began 2.00 h after rank 1."],
        ),
        ([rank(0, pauses=pause(0)), rank(1, pauses=pause(9 * HOUR))], []),
        ([rank(0, torch_version="2.11"), rank(1, torch_version="2.13")], ["The ranks ran different versions"]),
        ([of_ray(0), of_ray(1)], []),
        ([of_ray(0), of_ray(1, exit_status=None), ended(2, 20)], []),
        ([ended(0, None, exit_status=1), ended(1, 20, exit_status=0)], ["Rank 0 failed: exit status 1"]),
        ([of_ray(0, exit_error="ValueError"), of_ray(1)], ["Rank 0 failed: ValueError"]),
        ([of_ray(0, exit_status=137, signal=9), of_ray(1)], ["Rank 0 failed: killed by SIGKILL"]),
    ],
)
def test_each_problem_is_said_once(ranks: list[Rank], expected: list[str]) -> None:
    found = list_problems(ranks)
    assert len(found) == len(expected)
    for text, start in zip(found, expected, strict=True):
        assert text.startswith(start)


SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("error_ns", "error_ended_ns", "killed_ns", "first"),
    [
        (8 * SECOND, 9 * SECOND, 8 * SECOND + SECOND // 10, "Rank 1 failed first: killed by SIGKILL"),  # seen late
        (8 * SECOND, 9 * SECOND, 9 * SECOND + SECOND // 10, "Rank 0 failed first: RuntimeError"),  # by the launcher
        (8 * SECOND, 19 * SECOND, 12 * SECOND, "Rank 0 failed first: RuntimeError"),
        (8 * SECOND, None, 8 * SECOND + SECOND // 10, "Rank 0 failed first: RuntimeError"),
    ],
)
def test_a_kill_before_any_process_ended_is_no_consequence(
    error_ns: int, error_ended_ns: int | None, killed_ns: int, first: str
) -> None:
    failed = ended(0, error_ns, exit_error="RuntimeError", ended_ns=error_ended_ns)
    killed = ended(1, None, signal=9, ended_ns=killed_ns)
    (problem,) = list_problems([failed, killed])
    assert problem.startswith(first)


ALL_AT_ONCE = 9 * SECOND


@pytest.mark.parametrize(
    ("failed", "first"),
    [
        pytest.param(
            [
                ended(0, None, signal=9, ended_ns=ALL_AT_ONCE),
                ended(1, 8 * SECOND, exit_error="ValueError", ended_ns=ALL_AT_ONCE),
            ],
            "Rank 1 failed first: ValueError",
            id="launcher kills the others, both ends seen at once",
        ),
        pytest.param(
            [
                ended(0, 8 * SECOND, exit_error="RuntimeError", exit_lost_peer=True, ended_ns=ALL_AT_ONCE),
                ended(1, None, signal=9, ended_ns=ALL_AT_ONCE),
            ],
            "Rank 1 failed first: killed by SIGKILL",
            id="peer of a killed rank, both ends seen at once",
        ),
        pytest.param(
            [
                ended(0, 2 * SECOND, exit_error="RuntimeError", exit_lost_peer=True),
                ended(1, 8 * SECOND, exit_error="ValueError"),
            ],
            "Rank 1 failed first: ValueError",
            id="cleans up for long after its group is destroyed",
        ),
        pytest.param(
            [
                ended(0, 2 * SECOND, exit_error="RuntimeError", exit_lost_peer=True, ended_ns=2 * SECOND),
                ended(1, 8 * SECOND, signal=15, ended_ns=8 * SECOND),
                ended(2, 1 * SECOND, exit_status=0),
            ],
            "Rank 2 exited with status 0 before the others. Ranks 0 and 1 ended because of it: RuntimeError",
            id="lost a rank that ended well, and the launcher stopped the third",
        ),
        pytest.param(
            [
                ended(0, None, signal=15, ended_ns=2 * SECOND + 1),
                ended(1, 2 * SECOND, exit_error="RuntimeError", exit_lost_peer=True, ended_ns=3 * SECOND),
                ended(2, 1 * SECOND, exit_status=0),
            ],
            "Rank 0 failed first: killed by SIGTERM",
            id="somebody stopped one rank",
        ),
        pytest.param(
            [
                ended(0, 2 * SECOND, signal=15, exit_error="RuntimeError", exit_lost_peer=True, ended_ns=3 * SECOND),
                ended(1, None, signal=15, ended_ns=2 * SECOND + 1),
            ],
            "Rank 1 failed first: killed by SIGTERM",
            id="somebody stopped one rank, and the launcher the other",
        ),
        pytest.param(
            [ended(0, 2 * SECOND, signal=15), ended(1, None, exit_status=7, ended_ns=2 * SECOND + 5)],
            "Rank 1 failed first: exit status 7",
            id="stopped by the launcher, which is seen before the cause",
        ),
        pytest.param(
            [
                ended(0, None, signal=15, ended_ns=4 * SECOND),
                ended(1, None, ended_ns=3 * SECOND, has_all_steps=False),
            ],
            "Rank 1 failed first: killed, after at least 10 steps. Rank 0 ended because of it: killed by SIGTERM.",
            id="another process has read the status of the killed one",
        ),
        pytest.param(
            [
                ended(0, None, ended_ns=3 * SECOND, has_all_steps=False),
                ended(1, None, signal=15, ended_ns=3 * SECOND + SECOND // 30),
                ended(2, None, ended_ns=3 * SECOND + SECOND // 100, has_all_steps=False),
            ],
            "3 ranks failed, and which was the first is not known: rank 0 (killed), rank 1 (killed by SIGTERM), rank 2",
            id="a scheduler has ended all of them, and has read the status of two",
        ),
        pytest.param(
            [ended(0, 2 * SECOND, ended_ns=3 * SECOND), ended(1, None, signal=15, ended_ns=4 * SECOND)],
            "Rank 1 was killed by SIGTERM.",
            id="the launcher did not see how the other one ended",
        ),
        pytest.param(
            [
                ended(number, None, signal=9, ended_ns=(3 + number) * SECOND, stopped_ns=2 * SECOND)
                for number in range(2)
            ],
            "Ranks 0 and 1 were killed by SIGKILL.",
            id="the launcher was asked to end, and killed both",
        ),
        pytest.param(
            [
                ended(0, None, signal=9, ended_ns=2 * SECOND, stopped_ns=3 * SECOND),
                ended(1, None, signal=9, ended_ns=4 * SECOND, stopped_ns=3 * SECOND),
            ],
            "Rank 0 failed first: killed by SIGKILL",
            id="killed before the launcher was asked to end",
        ),
        pytest.param(
            [
                ended(0, None, signal=15, ended_ns=9 * SECOND + 1),
                ended(1, None, signal=9, ended_ns=9 * SECOND),
                ended(2, 2 * SECOND, signal=15, ended_ns=9 * SECOND + 2),
            ],
            "Rank 1 failed first: killed by SIGKILL",
            id="a rank that had trained to its end was stopped while it exited",
        ),
        pytest.param(
            [ended(number, None, signal=9, ended_ns=(99 + number) * SECOND, stopped_ns=SECOND) for number in range(2)],
            "Rank 0 failed first: killed by SIGKILL",
            id="went on for long after the launcher was asked to end",
        ),
        pytest.param(
            [ended(number, 2 * SECOND, exit_error="ValueError") for number in range(2)],
            "Ranks 0 and 1 ended with ValueError.",
            id="at the same time",
        ),
    ],
)
def test_the_cause_is_told_from_its_victims(failed: list[Rank], first: str) -> None:
    problem, *_ = list_problems(failed)
    assert problem.startswith(first)
    assert "did not fail" not in problem


def test_a_single_rank_is_not_called_the_first() -> None:
    assert list_problems([rank(0, oom=[{"t_ns": 20, "step": 812}])]) == ()
