"""Object storage on this machine: an S3 server in a thread, which can lose its connections."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

BUCKET = "bucket"


@dataclass
class Storage:
    """A server with one empty bucket. After ``left`` more requests, every connection is lost; None keeps them."""

    port: int
    left: int | None = None

    @property
    def url(self) -> str:
        """Return the URL of the bucket."""
        return f"s3://{BUCKET}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables with which a program reaches the server."""
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_MAX_ATTEMPTS": "1",
        }

    def names(self) -> list[str]:
        """Return the names of all objects."""
        from moto.s3.models import s3_backends

        (backend,) = (one for partition in s3_backends.values() for one in partition.values() if BUCKET in one.buckets)
        return sorted(backend.buckets[BUCKET].keys)


@contextmanager
def object_storage() -> Iterator[Storage]:
    """Serve a bucket, and let this process reach it."""
    import s3fs
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    whole: Any = DomainDispatcherApplication(create_backend_app)

    def serve(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if storage.left is not None:
            storage.left -= 1
            if storage.left < 0:
                environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
                return []
        answer: Iterable[bytes] = whole(environ, start)
        return answer

    server = make_server("127.0.0.1", 0, serve, threaded=True)
    storage = Storage(server.server_port)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        with mock.patch.dict("os.environ", storage.environment), mock.patch.object(s3fs.S3FileSystem, "retries", 1):
            s3fs.S3FileSystem().mkdir(BUCKET)
            yield storage
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        s3_backends.reset()
        s3fs.S3FileSystem.clear_instance_cache()
