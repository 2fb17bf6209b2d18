"""A real Jupyter kernel, run cell by cell as a notebook runs it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

PATIENCE_S = 600


@dataclass
class Cell:
    """What a cell left below itself: its streams, what it showed by type, and its error as ``Name: message``."""

    stdout: str = ""
    stderr: str = ""
    shown: dict[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def html(self) -> str:
        """Return what it showed as HTML; "" where it showed none."""
        return self.shown.get("text/html", "")


class Notebook:
    """A kernel under way. A cell that fails fails the test, unless its error is asked for."""

    def __init__(self, manager: KernelManager, client: Any) -> None:
        self._manager = manager
        self._client = client

    def run(self, source: str) -> Cell:
        """Return what the cell left; it must not fail.

        Raises:
            AssertionError: it failed.
        """
        cell = self.try_run(source)
        assert not cell.error, cell.error
        return cell

    def try_run(self, source: str) -> Cell:
        """Return what the cell left, its error included."""
        return self.wait(self.begin(source))

    def begin(self, source: str) -> str:
        """Return the number of a cell that has been sent and is under way."""
        number: str = self._client.execute(source, store_history=True)
        return number

    def wait(self, number: str) -> Cell:
        """Return what a cell left that was begun."""
        cell = Cell()
        while True:
            message = self._client.get_iopub_msg(timeout=PATIENCE_S)
            if message["parent_header"].get("msg_id") != number:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                setattr(cell, content["name"], getattr(cell, content["name"]) + content["text"])
            elif kind in ("execute_result", "display_data"):
                cell.shown |= content["data"]
            elif kind == "error":
                cell.error = f"{content['ename']}: {content['evalue']}"
            elif kind == "status" and content["execution_state"] == "idle":
                return cell

    def wait_for_output(self, number: str, text: str) -> None:
        """Wait until a cell under way has written ``text``."""
        seen = ""
        while text not in seen:
            message = self._client.get_iopub_msg(timeout=PATIENCE_S)
            if message["parent_header"].get("msg_id") == number and message["msg_type"] == "stream":
                seen += message["content"]["text"]

    def interrupt(self) -> None:
        """Press the notebook's stop button."""
        self._manager.interrupt_kernel()


@contextmanager
def open_notebook(directory: Path, environment: dict[str, str]) -> Iterator[Notebook]:
    """Start a kernel in ``directory``; it is shut down at the end, whatever happened."""
    with tempfile.TemporaryDirectory(prefix="kernel-") as scratch:  # a socket's path must stay below 108 characters
        manager = KernelManager(transport="ipc", ip=os.path.join(scratch, "kernel"))
        manager.connection_file = os.path.join(scratch, "kernel.json")
        own = {"IPYTHONDIR": scratch, "JUPYTER_RUNTIME_DIR": scratch, "JUPYTER_PLATFORM_DIRS": "1"}
        manager.start_kernel(env={**environment, **own}, cwd=str(directory))
        client = manager.blocking_client()
        try:
            client.start_channels()
            client.wait_for_ready(timeout=PATIENCE_S)
            yield Notebook(manager, client)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
            manager.cleanup_resources()
