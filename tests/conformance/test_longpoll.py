"""The long-poll driver against the suite that defines a correct one: in the clear, and with certificates."""

from __future__ import annotations

import pytest

from pubsub_api.testing.conformance import DriverConformance
from tests.helpers.paths import TLS


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine answers late."""
    monkeypatch.setattr("heliograph_drivers.pubsub.longpoll.config.QUERY_TIMEOUT_S", 60.0)


class TestLongpoll(DriverConformance):
    url = "longpoll://127.0.0.1:0"


class TestMutualTls(DriverConformance):
    url = (
        f"longpoll://127.0.0.1:0?tls_client_auth=true&tls_ca_file={TLS}/ca.pem"
        f"&tls_cert_file={TLS}/node.pem&tls_key_file={TLS}/node-key.pem"
    )
