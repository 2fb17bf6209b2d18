"""Workers as Ray actors, one for each GPU of the Ray cluster."""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

from gpuledger.errors import NoDeviceError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.method import REFERENCE_EVERY, Method, Mode
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.database.statistics import drifted_sections
from gpuledger.ops.measure.campaign import WorkerAnswer
from gpuledger.ops.measure.measure import Task
from gpuledger.ops.measure.measured_device import Device

VACATED_S = 30.0
"""Time limit in s for an ended process to release its GPU."""
REVIVED_S = 600.0
"""Time limit in s for a worker to restart and load torch. After that, its machine counts as lost."""


class Measurer:
    """The process of one worker, which measures one operator at a time on one device."""

    def __init__(self, device: str, method: dict[str, Any], force: bool, ours: tuple[int, ...]) -> None:
        from gpuledger.ops.measure.measurement_session import MeasurementSession

        self._method = Method(**{**method, "modes": tuple(Mode(mode) for mode in method["modes"])})
        self._session = MeasurementSession(_place_of(device, force=force, ours=ours), self._method)

    def environment(self) -> dict[str, Any]:
        """Return the device and software."""
        return self._session.place.environment.to_json()

    def measure(self, key: dict[str, Any], mode: str, energy: bool) -> dict[str, Any]:
        """Return the record of one operator. If the GPU is lost, the process ends and is restarted."""
        from gpuledger.ops.measure.one import CardLostError

        try:
            return self._session.measure(OperatorKey.from_json(key), Mode(mode), energy=energy).to_json()
        except CardLostError:
            os._exit(1)

    def references(self) -> list[tuple[float, float]]:
        """Return the measurements of the reference operator since the last call, with a new one."""
        from gpuledger.ops.measure.measurement_session import MeasurementSession

        session, self._session = self._session, MeasurementSession(self._session.place, self._method)
        session.take_reference()
        return session.references

    def process(self) -> int:
        """Return the process's id."""
        return os.getpid()


def _place_of(device: str, *, force: bool, ours: tuple[int, ...]) -> Device:
    """Return a worker's device. After a restart, waits until the previous process has released the GPU.

    Raises:
        NoDeviceError: other processes use the GPU.
    """
    from gpuledger.ops.measure.measured_device import find_device

    ray: Any = importlib.import_module("ray")
    is_back = ray.get_runtime_context().was_current_actor_reconstructed
    deadline_s = time.monotonic() + (VACATED_S if is_back else 0.0)
    while True:
        try:
            return find_device(device, force=force, ours=ours)
        except NoDeviceError:
            if time.monotonic() >= deadline_s:
                raise
        time.sleep(0.5)


class RayCrew:
    """Ray's actors as a crew.

    Args:
        ray: The connected library.
        device: ``cuda`` for one worker on each GPU, ``cpu`` for one on each of ``workers``.
        method: How operators are measured.
        workers: Number of workers on a CPU.
        force: Measure even if other processes use the GPU.
    """

    def __init__(self, ray: Any, device: str, method: Method, *, workers: int = 1, force: bool = False) -> None:
        self._ray = ray
        count = int(ray.cluster_resources().get("GPU", 0)) if device != "cpu" else workers
        if not count:
            raise NoDeviceError(
                "campaign: the Ray cluster has no GPU",
                hint="Measure on the CPU with --device cpu, or add machines with a GPU",
            )
        share = {"num_gpus": 1} if device != "cpu" else {"num_cpus": 1}
        actor = ray.remote(Measurer).options(**share, max_restarts=-1)
        where = "cuda:0" if device != "cpu" else "cpu"
        plain, ours = method.document(), (os.getpid(),)
        self.actors = [actor.remote(where, plain, force, ours) for _ in range(count)]
        found = ray.get([one.environment.remote() for one in self.actors])
        self._environments = [Environment(**one) for one in found]
        self._given: dict[Any, tuple[int, Task]] = {}
        self._done: list[list[tuple[Task, bool]]] = [[] for _ in range(count)]

    @property
    def environments(self) -> list[Environment]:
        """Return each worker's environment."""
        return self._environments

    def give(self, worker: int, task: Task, *, energy: bool) -> None:
        """Let a worker measure an operator."""
        reference = self.actors[worker].measure.remote(task.key.to_json(), task.mode.value, energy)
        self._given[reference] = (worker, task)

    def wait(self) -> WorkerAnswer:
        """Return the next result. It has no record if the worker ended; Ray restarts the worker."""
        (ready,), _ = self._ray.wait(list(self._given), num_returns=1)
        worker, task = self._given.pop(ready)
        try:
            found = self._ray.get(ready)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.WorkerCrashedError):
            self._revive(worker)
            self._done[worker].clear()  # its references are lost, too
            return WorkerAnswer(worker, task, None)
        self._done[worker].append((task, found["status"] == "ok"))
        return WorkerAnswer(
            worker, task, Record(**{**found, "blocks": tuple(found["blocks"]), "kernels": tuple(found["kernels"])})
        )

    def drifted(self) -> list[tuple[int, Task]]:
        """Return the tasks since the last call that were measured while the reference drifted."""
        asked = [(worker, done) for worker, done in enumerate(self._done) if done]
        references = self._ray.get([self.actors[worker].references.remote() for worker, _ in asked])
        again = [
            (worker, task)
            for (worker, done), found in zip(asked, references, strict=True)
            for section in drifted_sections([(median, half) for median, half in found])
            for task, good in done[section * REFERENCE_EVERY : (section + 1) * REFERENCE_EVERY]
            if good
        ]
        self._done = [[] for _ in self.actors]
        return again

    def _revive(self, worker: int) -> None:
        """Wait until Ray has restarted a worker. A task given to it before that would count as another failure."""
        deadline_s = time.monotonic() + REVIVED_S
        while True:
            try:
                self._ray.get(self.actors[worker].process.remote())
                return
            except self._ray.exceptions.RayActorError as error:
                if time.monotonic() > deadline_s:
                    raise NoDeviceError("campaign: a worker process ended and could not be restarted") from error
            time.sleep(0.5)
