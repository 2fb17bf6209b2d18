"""Object storage on this machine: an S3 or Google Cloud Storage server in a thread, which can lose its connections."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

BUCKET = "bucket"
SCHEMES = ("s3", "gs")


@dataclass
class Storage:
    """A server with one empty bucket. After ``left`` more requests, every connection is lost; None keeps them.

    ``environment`` has the variables with which a program reaches the server. ``names`` returns those of all objects,
    in order.
    """

    scheme: str
    environment: dict[str, str]
    names: Callable[[], list[str]]
    left: int | None = None

    @property
    def url(self) -> str:
        """Return the URL of the bucket."""
        return f"{self.scheme}://{BUCKET}"

    @property
    def filesystem(self) -> Any:
        """Return fsspec's file system."""
        import fsspec

        return fsspec.filesystem(self.scheme)

    def loses_request(self) -> bool:
        """Count a request, and return whether its connection is to be lost."""
        if self.left is not None:
            self.left -= 1
        return self.left is not None and self.left < 0


@contextmanager
def object_storage(scheme: str = "s3") -> Iterator[Storage]:
    """Serve a bucket, and let this process reach it."""
    with {"s3": _s3, "gs": _google}[scheme]() as (server, storage, clear):
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        clear()
        try:
            with mock.patch.dict("os.environ", storage.environment):
                storage.filesystem.mkdir(BUCKET)
                yield storage
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
            clear()


@contextmanager
def _s3() -> Iterator[tuple[Any, Storage, Callable[[], object]]]:
    """Give a server that speaks S3, its storage, and what forgets the connections to it."""
    import s3fs
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    whole: Any = DomainDispatcherApplication(create_backend_app)

    def serve(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if storage.loses_request():
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        answer: Iterable[bytes] = whole(environ, start)
        return answer

    def names() -> list[str]:
        (backend,) = (one for partition in s3_backends.values() for one in partition.values() if BUCKET in one.buckets)
        return sorted(backend.buckets[BUCKET].keys)

    server = make_server("127.0.0.1", 0, serve, threaded=True)
    environment = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_MAX_ATTEMPTS": "1",
    }
    storage = Storage("s3", environment, names)
    try:
        with mock.patch.object(s3fs.S3FileSystem, "retries", 1):
            yield server, storage, s3fs.S3FileSystem.clear_instance_cache
    finally:
        s3_backends.reset()


@contextmanager
def _google() -> Iterator[tuple[Any, Storage, Callable[[], object]]]:
    """Give a server that speaks Google's JSON API, its storage, and what forgets the connections to it."""
    from http.server import HTTPServer

    import gcsfs
    from gcp_storage_emulator.server import RequestHandler
    from gcp_storage_emulator.storage import Storage as Objects

    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    objects = Objects(use_memory_fs=True)

    class Handler(RequestHandler):  # type: ignore[misc]  # the emulator has no types
        def __init__(self, *connection: Any) -> None:
            super().__init__(objects, *connection)

        def parse_request(self) -> bool:
            if storage.loses_request():
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return False
            return bool(super().parse_request())

    class Server(HTTPServer):
        request_queue_size = 128

        def handle_error(self, *connection: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # the client no longer waits for the answer
                super().handle_error(*connection)

    def names() -> list[str]:
        return sorted(one["name"] for one in objects.get_file_list(BUCKET)[0])

    async def not_at_all(_seconds: float) -> None:
        """Wait for nothing between the tries of a request."""

    server = Server(("127.0.0.1", 0), Handler)
    environment = {
        "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{server.server_port}",
        "GOOGLE_APPLICATION_CREDENTIALS": os.devnull,  # those of this machine are for the real service
    }
    storage = Storage("gs", environment, names)
    with mock.patch("gcsfs.retry.asyncio", SimpleNamespace(sleep=not_at_all)):
        yield server, storage, gcsfs.GCSFileSystem.clear_instance_cache
