"""The ZeroMQ driver against the suite that defines a correct one: over tcp, over a socket file, and encrypted."""

from __future__ import annotations

import pathlib

import pytest
import zmq.auth

from pubsub_api.testing.conformance import DriverConformance


class TestZmq(DriverConformance):
    url = "zmq://127.0.0.1:0"


class TestZmqOnSocketFile(DriverConformance):
    @pytest.fixture
    def driver_url(self, tmp_path: pathlib.Path) -> str:
        return f"zmq://{tmp_path}/first"

    @pytest.fixture
    def second_url(self, tmp_path: pathlib.Path) -> str:
        return f"zmq://{tmp_path}/second"


class TestZmqEncrypted(DriverConformance):
    @pytest.fixture
    def driver_url(self, tmp_path: pathlib.Path) -> str:
        allowed = tmp_path / "allowed"
        allowed.mkdir()
        server_public, server_secret = zmq.auth.create_certificates(tmp_path, "server")
        _client_public, client_secret = zmq.auth.create_certificates(allowed, "client")
        return (
            f"zmq://127.0.0.1:0?curve_server_secret_key_file={server_secret}&curve_secret_key_file={client_secret}"
            f"&curve_server_public_key_file={server_public}&curve_allowed_keys_dir={allowed}"
        )
