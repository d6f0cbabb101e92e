"""Encrypted long-poll links with real certificates: who has no right one stays out, and nobody else notices."""

from __future__ import annotations

import logging

import pytest

import pubsub_api
from pubsub_api.driver import Connected
from pubsub_api.testing.fast_conf import fast_conf
from tests.functional.conftest import event
from tests.helpers.longpoll_ends import URL, Ends, counters_of, ends, state_of  # noqa: F401
from tests.helpers.paths import TLS
from tests.helpers.waiting import wait_until

CA = f"tls_ca_file={TLS}/ca.pem"
SERVER = f"tls_cert_file={TLS}/server.pem&tls_key_file={TLS}/server-key.pem"
CLIENT = f"tls_cert_file={TLS}/client.pem&tls_key_file={TLS}/client-key.pem"
BOTH = f"tls_cert_file={TLS}/node.pem&tls_key_file={TLS}/node-key.pem"
WRONG_CA = f"tls_ca_file={TLS}/client.pem"
LOGGER = "heliograph_drivers.pubsub.longpoll.link"


def test_a_subscriber_that_trusts_the_publisher_gets_in(ends: Ends) -> None:  # noqa: F811
    publisher = ends.publisher(f"{URL}?{CA}&{SERVER}")
    _, heard = ends.subscriber(publisher.address, "t", url=f"{URL}?{CA}")
    heard.wait_frame(ends.send(publisher, "t")[0])


def test_a_certificate_for_another_name_is_accepted_when_told_so(ends: Ends) -> None:  # noqa: F811
    publisher = ends.publisher(f"{URL}?{CA}&{SERVER}")
    _, heard = ends.subscriber(publisher.address, "t", url=f"{URL}?{CA}&tls_server_name=127.0.0.1")
    heard.wait_frame(ends.send(publisher, "t")[0])


@pytest.mark.parametrize(
    ("publishes", "subscribes"),
    [
        (f"{CA}&{SERVER}", ""),
        (f"{CA}&{SERVER}", WRONG_CA),
        (f"{CA}&{SERVER}", f"{CA}&tls_server_name=elsewhere.example"),
        (f"{CA}&{SERVER}&tls_client_auth=true", CA),
        ("", CA),
    ],
    ids=["in the clear", "another authority", "another name", "no certificate", "a publisher in the clear"],
)
def test_who_has_no_right_to_stays_out_and_is_told_why_once(
    ends: Ends, caplog: pytest.LogCaptureFixture, publishes: str, subscribes: str  # noqa: F811
) -> None:  # fmt: skip
    publisher = ends.publisher(f"{URL}?{publishes}")
    with caplog.at_level(logging.WARNING, LOGGER):
        subscriber, heard = ends.subscriber(
            publisher.address, "t", url=f"{URL}?retry_interval_max=0.2&{subscribes}".rstrip("&"), is_awaited=False
        )
        wait_until(lambda: _failures(subscriber) >= 3, 60, "three attempts")
    assert heard.links == []
    assert state_of(publisher).sessions == 0
    assert len([record for record in caplog.records if record.name == LOGGER]) == 1
    friend = f"{CA}&{CLIENT}" if publishes else ""
    _, welcome = ends.subscriber(publisher.address, "t", url=f"{URL}?{friend}")
    welcome.wait_frame(ends.send(publisher, "t")[0])
    assert welcome.links == [Connected(publisher.address)]


def _failures(subscriber: object) -> int:
    return sum(counters.failures for counters in counters_of(subscriber))


def test_a_session_with_certificates_on_both_sides() -> None:
    url = f"{URL}?{CA}&{BOTH}&tls_client_auth=true"
    with pubsub_api.open(conf=fast_conf(url)) as session:
        publisher = session.publisher()
        subscriber = session.subscriber(["tenant-7/#"], addresses=[publisher.address])
        subscriber.wait_ready(timeout_s=30)
        publisher.send_event(event(1))
        assert next(iter(subscriber)).version == 1
