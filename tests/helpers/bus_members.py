"""Members of groups that record from a bus, in processes of their own that can be killed.

``python -m tests.helpers.bus_members BUS LOG SETTINGS`` joins the group and answers ``{"do": "statistics"}``.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from oslo_config import cfg

import pubsub_api
from durable_log import config as log_config
from pubsub_api.core import frame as frames
from pubsub_api.testing.child import ChildProcess
from pubsub_api.testing.fast_conf import fast_conf
from shared_subscriptions import GroupSubscriber, config
from tests.helpers.group_nodes import CALM

SHARED = "$shared/billing/tenant-7/#"
WATCHFUL = {**CALM, "member_lease": 3.0}
"""Somebody is killed, and the others must notice soon; but nobody who stands still for a moment is taken for dead:
what is published while leaders change may rightly be lost with its publisher."""


def member_conf(bus_url: str, log_url: str, **options: Any) -> cfg.ConfigOpts:
    """A ``conf`` of a member that records, with options of ``[groups]``, those of `WATCHFUL` unless given."""
    conf = config.register(fast_conf(bus_url))
    conf.register_opts(log_config.OPTIONS, group=log_config.GROUP)
    conf.set_override("url", log_url, group=log_config.GROUP)
    for name, value in {**WATCHFUL, **options}.items():
        conf.set_override(name, value, group=config.GROUP)
    return config.register(conf)


class BusMember(ChildProcess):
    """A member in a process of its own."""

    def __init__(self, bus_url: str, log_url: str, **options: Any) -> None:
        super().__init__(bus_url, log_url, json.dumps(options), module=__name__)
        assert self.receive()["ready"]

    def statistics(self) -> dict[str, Any]:
        return self.ask(do="statistics")


def _say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _heard(subscriber: GroupSubscriber) -> list[str]:
    """The publishers of what it keeps as a standby."""
    recording = subscriber._recording
    assert recording is not None
    kept = [frame for standby in list(recording._standbys.values()) for _, frame in list(standby._kept)]
    return sorted({frames.unpack(frame, bytes_max=len(frame)).guid.hex() for frame in kept})


def main() -> None:
    bus_url, log_url, options = sys.argv[1:]
    with (
        pubsub_api.open(conf=member_conf(bus_url, log_url, **json.loads(options))) as session,
        session.subscriber([SHARED], lambda _event: None) as subscriber,
    ):
        assert isinstance(subscriber, GroupSubscriber)
        _say(ready=True)
        for _ in sys.stdin:
            _say(**dataclasses.asdict(subscriber.statistics()), heard=_heard(subscriber))


if __name__ == "__main__":
    main()
