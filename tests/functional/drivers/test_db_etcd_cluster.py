"""An etcd cluster with TLS, client certificates and users: members that fail and come back, and wrong credentials."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nb_api.db_api import DbApi
from nb_api.errors import DbUnavailable, ObjectExists, ObjectNotFound
from nb_api.testing.replay import WAIT_S, follow, stored
from pubsub_api.errors import InvalidConfig
from tests.helpers.db_faults import attempt, ends_well, opened, opened_hastily
from tests.helpers.etcd_cluster import FILES, EtcdCluster, EtcdMember
from tests.helpers.paths import TLS
from tests.helpers.waiting import wait_until

USER, PASSWORD = "heliograph", "p@ss:w/rd"


@pytest.fixture(scope="module")
def running() -> Iterator[EtcdCluster]:
    with EtcdCluster(3, has_tls=True) as cluster:
        cluster.add_users(USER, PASSWORD, b"test-")
        yield cluster


@pytest.fixture
def cluster(running: EtcdCluster) -> Iterator[EtcdCluster]:
    """With all of its members, whatever a test has done to them."""
    for member in running.members:
        if not member.is_running:
            member.restart()
    wait_until(lambda: all(member.is_ready for member in running.members), WAIT_S, "a leader")
    yield running
    for member in running.members:
        if member.is_running:
            member.thaw()


@pytest.fixture
def url(cluster: EtcdCluster) -> str:
    return cluster.new_prefix()


@pytest.fixture
def db(url: str) -> Iterator[DbApi]:
    with opened(url, **FILES) as db:
        yield db


def at(url: str, members: Sequence[EtcdMember]) -> str:
    """The same database at other endpoints."""
    head, _, rest = url.rpartition("@")
    return f"{head}@{','.join(member.address for member in members)}/{rest.partition('/')[2]}"


def write_until(db: DbApi, name: str, is_over: threading.Event) -> list[int]:
    """Create objects; returns the versions that were acknowledged."""
    versions: list[int] = []
    for number in itertools.count():
        if is_over.is_set():
            break
        with contextlib.suppress(DbUnavailable):
            versions.append(db.create("t", f"{name}-{number}", 1, topic="t"))
    return versions


def made(db: DbApi, key: str) -> None:
    """Create an object, however often it takes."""

    def create() -> bool:
        try:
            db.create("t", key, 0, topic="t")
        except ObjectExists:
            return True  # of an attempt whose answer did not come
        return True

    wait_until(lambda: ends_well(create), WAIT_S, f"{key} to be written")


def written(db: DbApi, key: str, value: object) -> None:
    """Give an object a value, however often it takes: a member that ends or stands still may be the leader."""
    wait_until(lambda: ends_well(lambda: db.set("t", key, value)), WAIT_S, f"{key} to be written")


class TestEndpoints:
    def test_no_acknowledged_write_is_lost_when_members_end(self, cluster: EtcdCluster, db: DbApi) -> None:
        is_over, before = threading.Event(), 0
        with ThreadPoolExecutor(3) as pool:
            try:
                writing = [pool.submit(write_until, db, f"{worker}", is_over) for worker in range(2)]
                following = pool.submit(follow, db, lambda seen: len(seen) >= 80)
                for member in cluster.members[:2]:
                    before = follow(db, lambda seen: len(seen) >= 20, after=before)[-1].revision
                    member.end()
                    before = follow(db, lambda seen: len(seen) >= 20, after=before)[-1].revision
                    member.restart()
            finally:
                is_over.set()
            acknowledged = [version for one in writing for version in one.result(WAIT_S)]
            seen = [change.revision for change in following.result(WAIT_S)]
        changes = [change.revision for change in db.changes(0, limit=1_000_000)]
        assert set(acknowledged) <= set(changes)
        assert changes == sorted(set(changes))
        assert seen == changes[: len(seen)]
        assert {held.version for held in stored(db).values()} == set(changes)

    def test_a_wait_goes_on_when_its_endpoint_is_killed(self, cluster: EtcdCluster, url: str, db: DbApi) -> None:
        with opened(at(url, cluster.members[1:]), **FILES) as other, ThreadPoolExecutor(1) as pool:
            version = other.create("t", "k", 0, topic="t")
            waiting = pool.submit(db.wait, version, timeout_s=WAIT_S)
            cluster.members[0].kill()
            written(other, "k", 1)
            assert waiting.result(WAIT_S) is True
            assert db.changes(version)[-1].value == 1

    def test_a_watch_that_goes_silent_is_noticed(self, cluster: EtcdCluster, url: str) -> None:
        with opened_hastily(url, operation_timeout=6.0, **FILES) as db:
            version = db.create("t", "k", 0, topic="t")
            assert db.wait(version, timeout_s=0.3) is False  # and the watch is kept
            cluster.members[0].freeze()
            with opened(at(url, cluster.members[1:]), **FILES) as other:
                written(other, "k", 1)
            wait_until(lambda: ends_well(lambda: db.wait(version, timeout_s=5.0)), WAIT_S, "the change")
            found = wait_until(lambda: attempt(lambda: db.changes(version)), WAIT_S, "what has changed")
            assert found[-1].value == 1

    def test_transactions_are_grpc_over_tls_too(self, url: str, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "heliograph_drivers.db.etcd")
        with opened(url, **FILES) as db:
            made(db, "k")
        assert "gateway" not in caplog.text

    def test_a_write_of_unknown_outcome_is_not_repeated(self, cluster: EtcdCluster, url: str) -> None:
        keys = (f"k{number}" for number in itertools.count())
        key = wait_until(lambda: self.meet_frozen_member(cluster, url, next(keys)), WAIT_S, "a write to a frozen one")
        with opened(url, **FILES) as db:
            made(db, "after")
            assert len([change for change in db.changes(0) if change.key == key]) <= 1

    @staticmethod
    def meet_frozen_member(cluster: EtcdCluster, url: str, key: str) -> str:
        """The key of a write whose answer did not come, nothing when another member was used already."""
        with opened_hastily(url, operation_timeout=2.0, **FILES) as db:
            made(db, f"{key}-before")  # the connection stands
            cluster.members[0].freeze()
            try:
                db.create("t", key, 1, topic="t")
            except DbUnavailable:
                return key
            finally:
                cluster.members[0].thaw()
        return ""

    def test_a_member_that_was_behind_shows_nothing_old(self, cluster: EtcdCluster, url: str, db: DbApi) -> None:
        version = db.create("t", "k", 0, topic="t")
        behind = cluster.members[2]
        with opened(at(url, [behind]), **FILES) as late:
            assert late.revision() == version
            behind.freeze()
            for number in range(1, 20):
                written(db, "k", number)
            version = db.get("t", "k").version
            behind.thaw()
            wait_until(lambda: ends_well(lambda: late.get("t", "k").version == version), WAIT_S, "the member")
            assert late.revision() == version

    def test_without_a_majority_nothing_is_done_and_later_it_goes_on(self, cluster: EtcdCluster, url: str) -> None:
        with opened_hastily(url, operation_timeout=2.0, **FILES) as db:
            made(db, "k")
            cluster.members[0].kill()
            cluster.members[1].kill()
            with pytest.raises(DbUnavailable):
                db.set("t", "k", 1)
            with pytest.raises(DbUnavailable):
                db.get("t", "k")
            cluster.members[1].restart()
            wait_until(lambda: ends_well(lambda: db.set("t", "k", 2)), WAIT_S, "the majority")


class TestOneCluster:
    def test_members_of_two_clusters_are_refused(self, cluster: EtcdCluster, url: str) -> None:
        with EtcdCluster(1, has_tls=True) as other:
            mixed = at(url, [cluster.members[0], *other.members])
            with pytest.raises(InvalidConfig, match="different clusters") as refused, opened(mixed, **FILES):
                pass
            assert other.members[0].address in str(refused.value)
            assert not refused.value.retriable
            stranger = other.members[0]
            stranger.kill()
            with opened(mixed, **FILES) as db:
                db.create("t", "k", 1, topic="t")
                stranger.restart()
                cluster.members[0].kill()
                with pytest.raises(DbUnavailable, match="cluster"):
                    db.create("t", "later", 1, topic="t")
                assert stranger.ask("kv/range", key="AA==", range_end="AA==").get("kvs", []) == []
                cluster.members[0].restart()
                wait_until(lambda: ends_well(lambda: db.get("t", "k").value == 1), WAIT_S, "the cluster")
                with pytest.raises(ObjectNotFound):
                    db.get("t", "later")

    def test_a_member_restored_alone_is_not_used(self, cluster: EtcdCluster, url: str) -> None:
        first, second, _ = cluster.members
        pair = at(url, [first, second])
        with opened(pair, **FILES) as db:
            db.create("t", "k", "old", topic="t")
            with first.restored_alone():
                written(db, "k", "new")
                with pytest.raises(InvalidConfig, match="restored"), opened(pair, **FILES):
                    pass
                second.kill()
                with pytest.raises(DbUnavailable, match="cluster"):
                    db.get("t", "k")
                second.restart()
                wait_until(lambda: ends_well(lambda: db.get("t", "k").value == "new"), WAIT_S, "the cluster")

    def test_a_follower_that_was_away_while_others_compacted(self, db: DbApi, url: str) -> None:
        first = db.create("t", "k", 0, topic="t")
        assert db.wait(first, timeout_s=0.3) is False
        with opened(url, **FILES) as other:
            versions = [other.set("t", "k", number) for number in range(1, 30)]
            other.compact(keep_changes=5, keep_tombstones_s=0)
        seen = follow(db, lambda seen: bool(seen) and seen[-1].revision == versions[-1], after=first)
        assert [change.revision for change in seen] == versions


class TestCredentials:
    @pytest.mark.parametrize(
        ("options", "advice"),
        [
            ({"tls_ca_file": str(TLS / "stranger.pem")}, "tls_ca_file"),
            (
                {"tls_cert_file": str(TLS / "stranger.pem"), "tls_key_file": str(TLS / "stranger-key.pem")},
                "tls_cert_file",
            ),
            ({"tls_cert_file": None, "tls_key_file": None}, "tls_cert_file"),
            (
                {"tls_cert_file": str(TLS / "client.pem"), "tls_key_file": str(TLS / "client-key.pem")},
                "without a common name",
            ),
            ({"tls_ca_file": "/no/such/file"}, "tls_ca_file"),
            ({"tls_key_file": str(TLS / "client-key.pem")}, "tls_key_file"),
        ],
        ids=["wrong-ca", "certificate-of-another-ca", "no-certificate", "with-a-name", "no-file", "other-key"],
    )
    @pytest.mark.parametrize("count", [1, 3])
    def test_wrong_files(
        self, cluster: EtcdCluster, url: str, count: int, options: dict[str, Any], advice: str
    ) -> None:
        with (
            pytest.raises(InvalidConfig, match=advice) as refused,
            opened(at(url, cluster.members[:count]), **{**FILES, **options}),
        ):
            pass
        assert not refused.value.retriable

    @pytest.mark.parametrize("count", [1, 3])
    def test_a_wrong_password(
        self, cluster: EtcdCluster, url: str, count: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        wrong = at(url, cluster.members[:count]).replace("p%40ss", "secret")
        with pytest.raises(InvalidConfig, match="password is wrong") as refused, opened(wrong, **FILES):
            pass
        assert not refused.value.retriable
        assert "secret" not in f"{refused.value!r} {refused.value} {caplog.text}"

    def test_no_user(self, cluster: EtcdCluster, url: str) -> None:
        nobody = f"etcds://{url.rpartition('@')[2]}"
        with pytest.raises(InvalidConfig, match="wants a user"), opened(nobody, **FILES):
            pass

    def test_a_role_without_permission(self, cluster: EtcdCluster, url: str) -> None:
        with (
            pytest.raises(InvalidConfig, match="grant-permission ROLE readwrite --prefix other") as refused,
            opened(f"{url.rpartition('/')[0]}/other", **FILES),
        ):
            pass
        assert not refused.value.retriable

    def test_an_address_without_tls(self, url: str) -> None:
        with pytest.raises(DbUnavailable, match="etcds://"), opened(url.replace("etcds", "etcd")):
            pass

    def test_files_for_an_address_without_tls(self, url: str) -> None:
        with pytest.raises(InvalidConfig, match="etcds://"), opened(url.replace("etcds", "etcd"), **FILES):
            pass

    def test_a_token_that_the_server_does_not_know_any_more(self, cluster: EtcdCluster, db: DbApi) -> None:
        """Changing the password, also to what it was, ends all tokens of the user."""
        version = db.create("t", "k", 0, topic="t")
        self.set_password(cluster, PASSWORD)
        version = db.set("t", "k", 1, expected_version=version)
        self.set_password(cluster, PASSWORD)
        assert db.wait(version, timeout_s=0.01) is False
        for member in cluster.members:
            member.restart()
        wait_until(lambda: ends_well(lambda: db.get("t", "k").version == version), WAIT_S, "the cluster")

    def test_a_password_that_is_changed_and_changed_back(self, cluster: EtcdCluster, db: DbApi) -> None:
        db.create("t", "k", 0, topic="t")
        self.set_password(cluster, "another")
        try:
            with pytest.raises(InvalidConfig, match="password is wrong"):
                db.get("t", "k")
        finally:
            self.set_password(cluster, PASSWORD)
        assert db.get("t", "k").value == 0

    def test_the_password_is_not_shown(self, db: DbApi) -> None:
        settings = vars(db)["_settings"]
        assert settings.password == PASSWORD
        assert PASSWORD not in f"{db!r} {settings!r} {settings}"

    @staticmethod
    def set_password(cluster: EtcdCluster, password: str) -> None:
        cluster.members[0].ask("auth/user/changepw", cluster.root_token(), name=USER, password=password)


def test_tls_to_a_server_without_it() -> None:
    with (
        EtcdCluster(1) as plain,
        pytest.raises(DbUnavailable, match="write etcd://"),
        opened(f"etcds://{plain.members[0].address}", **FILES),
    ):
        pass


def test_a_login_at_a_server_without_users() -> None:
    with (
        EtcdCluster(1) as plain,
        pytest.raises(InvalidConfig, match="auth enable"),
        opened(f"etcd://user:secret@{plain.members[0].address}"),
    ):
        pass
