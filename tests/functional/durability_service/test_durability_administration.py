"""Deleting history and making snapshots: who may, and who is refused."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

import pubsub_api
from durability_service import config, protocol
from durability_service.client import DurabilityClient
from durability_service.clients.asking import Asker
from durability_service.errors import AdministrationRefused
from durability_service.protocol import Ask
from durability_service.serving.administration import Administration, proof
from pubsub_api.errors import InvalidConfig
from tests.helpers.durability_domain import FAST, TIMEOUT_S, Domain, durability_conf

KEY = str(FAST["admin_key"]).encode()


@pytest.fixture
def domain(tmp_path: pathlib.Path) -> Iterator[Domain]:
    made = Domain(f"memory://{tmp_path.name}", tmp_path, is_bind_based=False)
    yield made
    made.close()


def filled(domain: Domain, **options: Any) -> Domain:
    domain.start("a", **options)
    domain.wait_complete()
    publisher = domain.publisher()
    publisher.send_event(pubsub_api.Event(topic="orders/eu", table="order", key="k", action="set", value=1))
    publisher.confirm(caches=1, timeout_s=TIMEOUT_S)
    publisher.close()
    return domain


def refused(domain: Domain) -> int:
    return domain.services["a"].status().counters["administration_refused"]


def asked(domain: Domain, ask: Ask) -> protocol.Answer:
    """What the service says to a frame that anybody can send."""
    asker = Asker(domain.session, None)
    try:
        (answer,) = asker.ask(ask, timeout_s=TIMEOUT_S, enough=lambda one: one.status is not None)
    finally:
        asker.close()
    return answer


def request(domain: Domain, key: bytes, challenge: bytes, *, action: int = 7, to: str = "a") -> Ask:
    ask = Ask(id=0, durability=protocol.DELETE, domain="default", topics=["#"], to=to, action=action)
    ask.challenge = challenge
    ask.proof = proof(key, ask, challenge)
    return ask


def test_nobody_without_the_key_deletes_history(domain: Domain) -> None:
    filled(domain)
    challenge = asked(domain, Ask(id=0, durability=protocol.STATUS, to="a")).challenge
    assert challenge
    for ask in (
        Ask(id=0, durability=protocol.DELETE, topics=["#"], action=1),
        Ask(id=0, durability=protocol.DELETE, topics=["#"], to="a", action=2, challenge=challenge),
        Ask(id=0, durability=protocol.SNAPSHOT, topics=["#"], to="a", action=3, challenge=challenge),
        request(domain, b"another key than theirs", challenge),
    ):
        before = refused(domain)
        assert "admin_key" in asked(domain, ask).refused
        assert refused(domain) > before  # by more than one when the answer was slow and the question was repeated
    domain.wait_complete(samples=1)


def test_a_recorded_request_is_worth_nothing(domain: Domain) -> None:
    filled(domain)
    with domain.client() as client:
        client.delete_historical_data(["other"], timeout_s=TIMEOUT_S)
    challenge = asked(domain, Ask(id=0, durability=protocol.STATUS, to="a")).challenge
    recorded = request(domain, KEY, challenge)
    asked(domain, recorded)  # again when the answer is slow: then it is the second one that is refused
    domain.wait_complete(samples=0)
    recorded.action += 1
    assert asked(domain, recorded).refused  # changed
    recorded = request(domain, KEY, challenge, action=8)
    assert "challenge" in asked(domain, recorded).refused  # used
    domain.stop("a")
    domain.start("a")
    domain.wait_complete()
    assert "challenge" in asked(domain, recorded).refused  # that of another life


def test_administration_is_off_until_there_is_a_key(domain: Domain) -> None:
    filled(domain, admin_key="")
    with domain.client() as client, pytest.raises(AdministrationRefused, match="is off"):
        client.delete_historical_data(["#"], timeout_s=TIMEOUT_S)
    with (
        pubsub_api.open(conf=durability_conf(domain.url, admin_key="")) as session,
        DurabilityClient(session) as client,
        pytest.raises(AdministrationRefused, match="set .* admin_key here"),
    ):
        client.snapshot(timeout_s=TIMEOUT_S)
    domain.wait_complete(samples=1)


def test_a_wrong_key_is_told_at_once(domain: Domain) -> None:
    filled(domain)
    with (
        pubsub_api.open(conf=durability_conf(domain.url, admin_key="not the one of the services")) as session,
        DurabilityClient(session) as client,
        pytest.raises(AdministrationRefused, match="does not prove"),
    ):
        client.delete_historical_data(["#"], timeout_s=TIMEOUT_S)
    assert refused(domain) >= 1


def test_a_short_key_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="admin_key is shorter"):
        config.admin_key(durability_conf("memory://short", admin_key="secret"))


def test_a_challenge_has_an_end(domain: Domain) -> None:
    gate = Administration(KEY)
    first = gate.challenge(0.0)
    assert gate.challenge(59.0) == first
    second = gate.challenge(61.0)
    assert second != first
    assert gate.admit(request(domain, KEY, first), "a", 100.0) == ""
    third = gate.challenge(100.0)
    assert "challenge" in gate.admit(request(domain, KEY, second), "a", 101.0)
    assert "challenge" in gate.admit(request(domain, KEY, third), "a", 500.0)
