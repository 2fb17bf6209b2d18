"""What Kineto's events are taken for where torch does not say it, as before 2.13."""

from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

from gpuledger.collect.adapter.kineto_events import kind_of_event  # noqa: E402
from gpuledger.model.journal.journal import ActivityKind  # noqa: E402

CPU, CUDA = torch._C._autograd.DeviceType.CPU, torch._C._autograd.DeviceType.CUDA


@dataclass(frozen=True)
class OldEvent:
    """An event as torch 2.11 gives it."""

    said_name: str
    device: object
    annotation: bool = False

    def name(self) -> str:
        return self.said_name

    def device_type(self) -> object:
        return self.device

    def is_user_annotation(self) -> bool:
        return self.annotation


@dataclass(frozen=True)
class NewEvent:
    """An event as torch 2.13 gives it."""

    said_name: str
    said_kind: str

    def name(self) -> str:
        return self.said_name

    def activity_type(self) -> str:
        return self.said_kind


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (NewEvent("aten::mm", "cpu_op"), ActivityKind.HOST),
        (NewEvent("TorchDynamo Cache Lookup", "cpu_op"), None),
        (NewEvent("Torch-Compiled Region: 0/0", "cpu_op"), ActivityKind.HOST),
        (NewEvent("the user's own range", "user_annotation"), None),
        (OldEvent("TorchDynamo Cache Lookup", CPU), None),
        (OldEvent("aten::mm", CPU), ActivityKind.HOST),
        (OldEvent("Optimizer.step#AdamW.step", CPU, annotation=True), ActivityKind.HOST),
        (OldEvent("cudaLaunchKernel", CPU), None),
        (OldEvent("Lazy Function Loading", CPU), None),
        (OldEvent("Runtime Triggered Module Loading", CPU), None),
        (OldEvent("Resource", CPU), ActivityKind.HOST),  # can be the user's own range
        (OldEvent("void at::native::reduce_kernel<512>(int)", CUDA), ActivityKind.KERNEL),
        (OldEvent("Memset (Device)", CUDA), ActivityKind.COPY),
        (OldEvent("Optimizer.step#AdamW.step", CUDA, annotation=True), None),
        (OldEvent("the user's own range", CUDA, annotation=True), None),
    ],
)
def test_the_shadow_of_a_range_is_no_kernel(event: OldEvent | NewEvent, kind: ActivityKind | None) -> None:
    assert kind_of_event(event) is kind
