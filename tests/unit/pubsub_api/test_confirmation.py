"""Confirmed publication where nothing answers as it should.  That it works is tested with real caches."""

from __future__ import annotations

import contextlib

import pytest

from pubsub_api import loading
from pubsub_api.core.errors import WaitTimeout
from pubsub_api.core.messages import Want
from pubsub_api.core.settings import PublisherSettings
from pubsub_api.publishing.confirmation import Confirmer, Needed


def make(**settings: float) -> Confirmer:
    driver = loading.build_driver(loading.conf_from_url("memory://confirmation"))
    return Confirmer(driver.get_subscriber(), PublisherSettings(**settings), addresses=["memory://confirmation"])


def test_an_answer_that_is_refused_is_counted() -> None:
    with contextlib.closing(make()) as confirmer:
        confirmer.on_frames([b"garbage", b""])
        assert confirmer.bad_replies == 2


def test_how_often_is_asked_and_sent_again_is_a_setting() -> None:
    """With the longer interval time runs out in the first round."""
    rounds: dict[float, int] = {}
    for interval_s in (0.001, 60.0):
        resent: list[Want] = []
        with (
            contextlib.closing(make(confirm_interval_s=interval_s, confirm_interval_max_s=interval_s)) as confirmer,
            pytest.raises(WaitTimeout, match=r"t 1\.\.2"),
        ):
            confirmer.confirm([Want(bytes(16), "t", 1, 2)], Needed(1), timeout_s=0.1, resend=resent.extend)
        rounds[interval_s] = len(resent)
    assert rounds[60.0] == 0
    assert rounds[0.001] > 0
