"""The long-poll driver against the suite that defines a correct one: in the clear, and with certificates."""

from __future__ import annotations

import pathlib

from pubsub_api.testing.conformance import DriverConformance

TLS = pathlib.Path(__file__).parents[1] / "functional" / "tls"


class TestLongpoll(DriverConformance):
    url = "longpoll://127.0.0.1:0?query_timeout=60"


class TestMutualTls(DriverConformance):
    url = (
        f"longpoll://127.0.0.1:0?query_timeout=60&tls=true&tls_client_auth=true&tls_root_ca={TLS}/ca.pem"
        f"&tls_listen_certificate={TLS}/server.pem&tls_listen_private_key={TLS}/server-key.pem"
        f"&tls_connect_certificate={TLS}/client.pem&tls_connect_private_key={TLS}/client-key.pem"
    )
