"""The configuration for tests: fast, private, and sound."""

from __future__ import annotations

from oslo_config import cfg

from pubsub_api import loading
from pubsub_api.testing.conf_fixture import ConfMaker, fast_conf, pubsub_conf

__all__ = ["pubsub_conf"]


def test_the_fast_times_agree_with_each_other() -> None:
    conf = fast_conf()
    assert loading.build_driver(conf).listen_addresses() == ["memory://default"]
    assert (conf.pubsub.max_idle_time, conf.pubsub.message_delay_window) == (0.2, 0.05)


def test_overrides_win() -> None:
    conf = fast_conf("memory://mine", max_idle_time=0.5, history=10)
    assert (conf.pubsub.max_idle_time, conf.pubsub.history, conf.memory.name) == (0.5, 10, "mine")


def test_each_conf_is_private(pubsub_conf: ConfMaker) -> None:
    first, second = pubsub_conf("memory://one"), pubsub_conf("memory://two", history=7)
    assert isinstance(first, cfg.ConfigOpts)
    assert first.memory.name == "one"
    assert first.pubsub.history != second.pubsub.history
    assert "pubsub" not in cfg.CONF
