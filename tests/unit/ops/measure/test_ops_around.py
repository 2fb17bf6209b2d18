"""What modules and autograd take the host: counted at the capture, measured by chains, added where the host holds."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from operator_keys import key_for
from present import present
from torch import nn

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.host_overhead import (
    AUTOGRAD_NODE,
    AUTOGRAD_NODES,
    KEYS,
    MODULE_CALL,
    MODULE_CALLS,
    NODE_MADE,
    is_operator,
)
from gpuledger.ops.database.method import Method, Mode
from gpuledger.ops.database.operator_database import open_database
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.measure.chains import LONG, SHORT, fill_around, links_of
from gpuledger.ops.measure.fill import fill
from gpuledger.ops.measure.measured_device import Device, find_device
from gpuledger.ops.predict.fit import examples_of
from gpuledger.ops.totals.sum import sum_up
from gpuledger.ops.workloads.captures import CPU, capture_step, device_named
from gpuledger.ops.workloads.workload import Use, Workload

ENVIRONMENT = Environment("card", "1", "2.13", "13", {"cache_bytes": 1000})
RELU = key_for(torch.ops.aten.relu.default, torch.ones(4))
COUNTS = {MODULE_CALLS: 68, AUTOGRAD_NODES: 10}


def record_of(key: OperatorKey, time_ns: float, **launch: float) -> Record:
    blocks = ({"kind": "summary", **launch},)
    mode = Mode.ROTATING.value if key == RELU else "host"
    return Record(key.digest, ENVIRONMENT.digest, {"mode": mode}, time_ns, time_ns, time_ns, blocks=blocks)


def records_of(call_ns: float = 7_000.0, node_ns: float = 2_000.0, **launch: float) -> list[Record]:
    return [record_of(RELU, 1_000.0, **launch), record_of(MODULE_CALL, call_ns), record_of(AUTOGRAD_NODE, node_ns)]


def workload_of(settings: dict[str, Any]) -> Workload:
    return Workload("model", "inference", (Use(RELU, 100),), settings=settings)


def test_what_is_around_the_launches_is_the_hosts() -> None:
    total = sum_up(workload_of(COUNTS), records_of(host_ns=5_000.0, queued_ns=2_000.0), ENVIRONMENT)
    assert present(total.around).time_ns == 68 * 7_000 + 10 * 2_000
    assert total.host_ns == total.step_ns == 100 * 5_000 + present(total.around).time_ns
    assert (total.busy_ns, total.queued_ns) == (100_000, 200_000)


def test_a_node_is_made_before_it_is_gone_back_through() -> None:
    records = [*records_of(), record_of(NODE_MADE, 3_000.0)]
    assert present(sum_up(workload_of(COUNTS), records, ENVIRONMENT).around).time_ns == 68 * 7_000 + 10 * (
        2_000 + 3_000
    )


def test_a_card_that_is_busy_for_longer_hides_it() -> None:
    records = records_of(1.0, 1.0, host_ns=500.0)
    assert sum_up(workload_of(COUNTS), records, ENVIRONMENT).step_ns == 100_000


def test_without_launches_it_comes_on_top() -> None:
    assert sum_up(workload_of(COUNTS), records_of(), ENVIRONMENT).step_ns == 100_000 + 68 * 7_000 + 10 * 2_000


@pytest.mark.parametrize(
    ("settings", "records", "only"),
    [
        ({}, records_of(host_ns=1.0), None),  # captured before they were counted
        (COUNTS, records_of(host_ns=1.0)[:2], None),  # an older database
        (COUNTS, records_of(host_ns=1.0), [RELU.digest]),  # some operators are asked for, not the whole
    ],
)
def test_old_databases_and_workloads_add_up_as_they_did(
    settings: dict[str, Any], records: list[Record], only: list[str] | None
) -> None:
    total = sum_up(workload_of(settings), records, ENVIRONMENT, only=only)
    assert total.around is None
    assert total.step_ns == 100_000


def test_they_teach_nothing_about_operators() -> None:
    keys = {key.digest: key for key in (*KEYS, RELU)}
    assert [one.key for one in examples_of(records_of(), keys)] == [RELU]
    assert [key for key in keys.values() if is_operator(key)] == [RELU]


def test_a_link_is_what_a_longer_chain_takes_more() -> None:
    made: list[int] = []

    def make(links: int, place: Device) -> Callable[[], int]:
        made.append(links)
        return lambda: sum(range(links * 50))

    links_ns = links_of(make, find_device("cpu"))
    assert made == [SHORT, LONG]
    assert sorted(links_ns)[len(links_ns) // 2] > 0


def test_a_database_is_given_each_once_and_a_sum_on_this_processor_has_its_line(tmp_path: Path) -> None:
    place = replace(find_device("cpu"), cache_bytes=1 << 12)
    quick = Method(target_frac=0.5, warm_up_ns=1, block_ns=1, least_blocks=3, most_blocks=3, energy=False)
    with open_database(tmp_path / "operators.db") as database:
        for _ in range(2):
            fill([workload_of(COUNTS)], database, place, quick)
        fill_around(database, place)
        records = database.records(place.environment)
        found = {record.key_digest: record for record in records}
        assert sum(record.key_digest != RELU.digest for record in records) == 3
        assert present(found[NODE_MADE.digest].time_median_ns) >= 0
        assert present(found[MODULE_CALL.digest].time_median_ns) > 50
        assert present(found[AUTOGRAD_NODE.digest].time_median_ns) > 50
        total = sum_up(workload_of(COUNTS), records, place.environment)
        assert total.step_ns == pytest.approx(total.busy_ns + present(total.around).time_ns)


def test_calls_of_modules_and_nodes_are_counted_at_the_capture() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    x = torch.ones(3, 4)

    def train() -> None:
        model.zero_grad()
        model(x).square().mean().backward()

    with device_named(CPU, lambda _sentence: None) as place:
        inference = capture_step(lambda: model(x), place).facts
        training = capture_step(train, place).facts
    assert inference[MODULE_CALLS] == training[MODULE_CALLS] == 5
    assert inference[AUTOGRAD_NODES] == 0
    nodes = training[AUTOGRAD_NODES]  # of the mean, the square, two products with their transposed weights, the ReLU
    assert 5 <= nodes <= 12
