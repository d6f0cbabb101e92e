"""The directory of publishers: what an entry is, who is listened to, who is taken for dead."""

from __future__ import annotations

from typing import Any

import pytest

from nb_api.coordination import lease_config
from nb_api.core.directory import TABLE, CollectorCore, DirectoryCore, Update, normalise, read_entry
from nb_api.db_api import DbObject
from pubsub_api.config import new_conf

NOTHING = Update([], [])


def row(guid: str, address: str = "", version: int = 1, **fields: Any) -> DbObject:
    value = {"name": "host/publisher", "guid": guid, "address": address or f"tcp://{guid}:1", "renewals": 1, **fields}
    return DbObject(TABLE, guid, "t", value, version)


def broken(key: str, value: Any) -> DbObject:
    return DbObject(TABLE, key, "t", value, 1)


BROKEN = {
    "none": None,
    "text": "tcp://x:1",
    "no-address": {"name": "n", "guid": "g"},
    "empty-address": {"name": "n", "guid": "g", "address": ""},
    "address-none": {"name": "n", "guid": "g", "address": None},
    "number": {"name": "n", "guid": "g", "address": 7},
    "other-guid": {"name": "n", "guid": "h", "address": "tcp://x:1"},
}


class TestEntries:
    def test_an_entry_is_read(self) -> None:
        entry = read_entry(row("a", "tcp://10.0.0.1:7"))
        assert entry is not None
        assert (entry.name, entry.guid, entry.address) == ("host/publisher", "a", "tcp://10.0.0.1:7")

    def test_a_later_release_may_say_more(self) -> None:
        assert read_entry(row("a", future="field")) is not None

    @pytest.mark.parametrize("name", BROKEN)
    def test_what_is_no_entry_is_none(self, name: str) -> None:
        assert read_entry(broken("g", BROKEN[name])) is None

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("tcp://Host.example:1", "TCP://host.example:1"),
            ("tcp://host.example.:1", "tcp://host.example:1"),
            ("tcp://[::1]:1", "tcp://[0:0:0:0:0:0:0:1]:1"),
            ("redis://h:1/", "redis://h:1"),
            ("ipc:///run/a/", "ipc:///run/a"),
        ],
    )
    def test_addresses_that_are_the_same(self, one: str, other: str) -> None:
        assert normalise(one) == normalise(other)

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("tcp://h:1", "tcp://h:2"), ("tcp://h:1", "tls://h:1"), ("ipc:///run/a", "ipc:///run/A"),
            ("tcp://h:x", "tcp://h:y"), ("redis://h:1/0", "redis://h:1/1"), ("tcp://a:1", "tcp://b:1"),
        ],
    )  # fmt: skip
    def test_addresses_that_differ(self, one: str, other: str) -> None:
        assert normalise(one) != normalise(other)


class TestSubscriberSide:
    def core(self, *static: str, grace_s: float = 10, publishers_max: int = 100) -> DirectoryCore:
        return DirectoryCore(static, grace_s=grace_s, publishers_max=publishers_max)

    def test_who_comes_is_listened_to_once(self) -> None:
        core = self.core()
        assert core.update([row("a"), row("b")], 0) == Update(["tcp://a:1", "tcp://b:1"], [])
        assert core.update([row("a", version=2), row("b")], 1) == NOTHING
        assert core.update([row("a"), row("b"), row("c")], 2) == Update(["tcp://c:1"], [])

    def test_who_is_gone_is_listened_to_for_a_while(self) -> None:
        core = self.core()
        core.update([row("a"), row("b")], 0)
        assert core.update([row("b")], 1) == NOTHING
        assert core.update([row("b")], 10.9) == NOTHING
        assert core.update([row("b")], 11) == Update([], ["tcp://a:1"])
        assert core.update([row("b")], 12) == NOTHING
        assert core.update([row("a"), row("b")], 13) == Update(["tcp://a:1"], [])

    def test_who_comes_back_meanwhile_is_never_left(self) -> None:
        core = self.core()
        core.update([row("a")], 0)
        for now in range(1, 100):
            present = [row("a", version=now)] if now % 9 == 0 else []
            assert core.update(present, now) == NOTHING

    def test_a_restart_at_the_same_address_changes_nothing(self) -> None:
        core = self.core()
        core.update([row("old", "tcp://h:1")], 0)
        assert core.update([row("old", "tcp://h:1"), row("new", "tcp://h:1")], 1) == NOTHING
        assert core.update([row("new", "TCP://H:1")], 100) == NOTHING

    def test_a_restart_at_another_port_is_followed(self) -> None:
        core = self.core(grace_s=0)
        core.update([row("old", "tcp://h:1")], 0)
        assert core.update([row("new", "tcp://h:2")], 1) == Update(["tcp://h:2"], ["tcp://h:1"])

    def test_what_is_configured_is_neither_added_nor_removed(self) -> None:
        core = self.core("TCP://h:1/", grace_s=0)
        assert core.update([row("a", "tcp://h:1"), row("b", "tcp://h:2")], 0) == Update(["tcp://h:2"], [])
        assert core.update([], 1) == Update([], ["tcp://h:2"])

    def test_nonsense_is_counted_and_disturbs_nobody(self) -> None:
        core = self.core(grace_s=0)
        rows = [broken(name, value) for name, value in BROKEN.items()]
        assert core.update([*rows, row("a")], 0) == Update(["tcp://a:1"], [])
        assert core.invalid == len(BROKEN)
        assert core.update([broken("a", None)], 1) == Update([], ["tcp://a:1"])

    def test_there_is_a_limit(self) -> None:
        core = self.core(publishers_max=3)
        assert len(core.update([row(f"{number}") for number in range(10)], 0).added) == 3
        assert core.ignored == 7
        assert len(core.entries) == 3


class TestCollector:
    def test_who_shows_progress_lives(self) -> None:
        core = CollectorCore(lease_s=60, gap_max_s=30)
        for turn in range(100):
            assert core.dead([row("a", version=turn)], 15 * turn) == []

    def test_who_shows_none_for_a_lease_is_dead(self) -> None:
        core = CollectorCore(lease_s=60, gap_max_s=30)
        dead = [[one.key for one in core.dead([row("a"), row("b", version=now)], now)] for now in range(0, 90, 15)]
        assert dead == [[], [], [], [], ["a"], ["a"]]

    def test_a_single_renewal_starts_anew(self) -> None:
        core = CollectorCore(lease_s=60, gap_max_s=30)
        for now, version in ((0, 1), (30, 1), (50, 1), (59, 2), (89, 2), (110, 2)):
            assert core.dead([row("a", version=version)], now) == []

    def test_an_outage_kills_nobody(self) -> None:
        """Nobody could renew while nobody could look."""
        core = CollectorCore(lease_s=60, gap_max_s=30)
        assert core.dead([row("a")], 0) == []
        assert core.dead([row("a")], 10_000) == []
        assert core.dead([row("a", version=2)], 10_001) == []

    def test_nonsense_goes_the_same_way(self) -> None:
        core = CollectorCore(lease_s=60, gap_max_s=30)
        assert [len(core.dead([broken("x", None)], now)) for now in (0, 30, 60)] == [0, 0, 1]


class TestSettings:
    def test_the_defaults_leave_room_for_late_renewals(self) -> None:
        settings = lease_config.read_discovery(new_conf())
        assert 3 * settings.renew_interval_s < settings.lease_s
