"""An object store for jobs of Spark: moto's S3 server as a process, with one bucket."""

from __future__ import annotations

import contextlib
import http.client
import sys
from collections.abc import Sequence

from tests.helpers.server_process import ServerProcess

BUCKET = "lake"


class ObjectServer(ServerProcess):
    name = "moto"

    def environment(self) -> dict[str, str]:
        """What tells a process where the store is, and who it is there."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "heliograph", "AWS_SECRET_ACCESS_KEY": "hidden", "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip

    def start(self) -> ObjectServer:
        super().start()
        assert self._ask("PUT", f"/{BUCKET}") == 200
        return self

    def _command(self) -> Sequence[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return self._ask("GET", "/moto-api/") == 200
        return False

    def _ask(self, method: str, path: str) -> int:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path)
            return connection.getresponse().status
