"""The Zenoh driver against the suite that defines a correct one: between peers, by a router, encrypted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest
import zenoh

from pubsub_api import loading
from pubsub_api.testing.conformance import DriverConformance
from tests.helpers.paths import TLS
from tests.helpers.zenoh_ends import plain_session

PATIENT = "send_wait=5"
"""A link is congested, and a question not answered, only when it is so, not when a loaded machine stands still."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine answers late."""
    monkeypatch.setattr("heliograph_drivers.pubsub.zenoh.config.QUERY_TIMEOUT_S", 60.0)
    monkeypatch.setattr("heliograph_drivers.pubsub.zenoh.config.BLOCK_WAIT_S", 60.0)


class ZenohConformance(DriverConformance):
    plain_settings: ClassVar[dict[str, object]] = {}

    def send_foreign(self, address: str, topic: str, payload: bytes) -> None:
        with plain_session("client", connect=[address], settings=self.plain_settings) as session:
            session.put(f"heliograph/{topic}", payload, congestion_control=zenoh.CongestionControl.BLOCK)


class TestPeers(ZenohConformance):
    url = f"zenoh://127.0.0.1:0?{PATIENT}"


class TestUndeclaredPeers(ZenohConformance):
    """The other half of what changes how a frame is sent."""

    url = f"zenoh://127.0.0.1:0?shared_memory=false&{PATIENT}"

    @pytest.fixture(autouse=True)
    def undeclared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("heliograph_drivers.pubsub.zenoh.config.DECLARED_MAX", 0)


class TestRouter(ZenohConformance):
    """The publisher is the router of its subscribers."""

    url = f"zenoh://127.0.0.1:0?mode=router&{PATIENT}"


class TestClients(ZenohConformance):
    """Both ends are clients of a router, here a publisher of the product that sends nothing."""

    @pytest.fixture
    def driver_url(self) -> Iterator[str]:
        router = loading.build_driver(
            loading.conf_from_url(f"zenoh://127.0.0.1:0?mode=router&{PATIENT}")
        ).get_publisher()
        router.initialize(lambda _report: None)
        yield f"zenoh://{router.address.removeprefix('tcp/')}?mode=client&{PATIENT}"
        router.close()


class TestMutualTls(ZenohConformance):
    url = (
        f"zenoh://127.0.0.1:0?{PATIENT}&tls_ca_file={TLS}/ca.pem&tls_client_auth=true"
        f"&tls_cert_file={TLS}/node.pem&tls_key_file={TLS}/node-key.pem"
    )
    plain_settings: ClassVar[dict[str, object]] = {
        "transport/link/tls/enable_mtls": True,
        "transport/link/tls/root_ca_certificate": f"{TLS}/ca.pem",
        "transport/link/tls/connect_certificate": f"{TLS}/client.pem",
        "transport/link/tls/connect_private_key": f"{TLS}/client-key.pem",
    }
