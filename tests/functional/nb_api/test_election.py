"""Elections on real databases, between threads and between processes that are killed and frozen."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import threading
from collections.abc import Iterator

import pytest

from nb_api.coordination.election import TABLE, Election
from nb_api.core import own_tables
from nb_api.db_api import DbApi
from nb_api.errors import ObjectNotFound
from nb_api.loading import open_db
from nb_api.testing.replay import WAIT_S
from pubsub_api.errors import Closed, Forked, WaitTimeout
from pubsub_api.testing.child import ChildProcess
from pubsub_api.testing.conformance.forks import in_forked_child, outcome
from tests.helpers.histories import SqliteFile
from tests.helpers.lease_child import candidate_process
from tests.helpers.servers import RedisServer
from tests.helpers.waiting import wait_until

LEASE_S = 0.5


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    return f"sqlite://{tmp_path}/objects.db"


@pytest.fixture
def db(url: str) -> Iterator[DbApi]:
    with contextlib.closing(open_db(url)) as db:
        yield db


class Log:
    """What a candidate was told, in order."""

    def __init__(self) -> None:
        self.calls: list[int | None] = []

    def election(self, db: DbApi, holder: str, *, lease_s: float = LEASE_S) -> Election:
        return Election(
            db, "sweeper", holder=holder, lease_s=lease_s,
            on_gain=self.calls.append, on_loss=lambda: self.calls.append(None),
        )  # fmt: skip


def test_tokens_go_on_rising_when_the_database_lost_everything(tmp_path: pathlib.Path) -> None:
    file, log = SqliteFile(), Log()
    file.new(tmp_path)
    with (
        contextlib.closing(open_db(file.url)) as one,
        contextlib.closing(open_db(file.url)) as other,
        log.election(one, "a") as first,
    ):
        first.wait_leader(timeout_s=WAIT_S)
        for number in range(20):  # a history that the new one does not catch up with at once
            one.create("port", f"p{number}", number, topic="t")
        with log.election(other, "b") as second:
            wait_until(lambda: second.statistics().leader == "a", WAIT_S, "the other to be seen")
            first.close()
            second.wait_leader(timeout_s=WAIT_S)
            file.lose()
            wait_until(lambda: log.calls.count(None) == 2, WAIT_S, "the loss to be noticed")
            second.wait_leader(timeout_s=WAIT_S)
            wait_until(lambda: len(log.calls) == 5, WAIT_S, "the third term")
    tokens = [token for token in log.calls if token is not None]
    assert len(tokens) == 3
    assert tokens == sorted(set(tokens))


class TestInOneProcess:
    def test_one_leads_and_the_other_follows_when_it_resigns(self, db: DbApi) -> None:
        logs = [Log(), Log()]
        with logs[0].election(db, "a", lease_s=12.0) as first:
            first.wait_leader(timeout_s=WAIT_S)
            with logs[1].election(db, "b", lease_s=12.0) as second:
                wait_until(lambda: second.statistics().leader == "a", WAIT_S, "the other to be seen")
                assert not second.is_leader()
                assert second.token() is None
                wait_until(lambda: logs[0].calls, WAIT_S, "the callback")
                first.close()
                assert not first.is_leader()
                second.wait_leader(timeout_s=WAIT_S)
                wait_until(lambda: logs[1].calls, WAIT_S, "the callback")
        for log in logs:
            assert log.calls[1::2] == [None] * (len(log.calls) // 2)
            assert log.calls[-1] is None
        tokens = [token for log in logs for token in log.calls if token is not None]
        assert tokens == sorted(set(tokens))
        with pytest.raises(ObjectNotFound):
            db.get(TABLE, "sweeper")

    def test_names_are_independent(self, db: DbApi) -> None:
        with Election(db, "a", holder="x") as one, Election(db, "b", holder="x") as other:
            one.wait_leader(timeout_s=WAIT_S)
            other.wait_leader(timeout_s=WAIT_S)

    def test_a_slow_callback_does_not_cost_the_lease(self, db: DbApi) -> None:
        proceed, called = threading.Event(), threading.Event()

        def on_gain(_: int) -> None:
            called.set()
            assert proceed.wait(WAIT_S)

        with Election(db, "n", holder="a", lease_s=LEASE_S, on_gain=on_gain) as election:
            try:
                assert called.wait(WAIT_S)
                token = election.wait_leader(timeout_s=WAIT_S)
                wait_until(lambda: election.statistics().renewals >= 8, WAIT_S, "two leases of renewals")
                assert election.token() in (token, None)  # None: on a machine that stood still
            finally:
                proceed.set()

    @pytest.mark.parametrize("raised", [ValueError, SystemExit, asyncio.CancelledError])
    def test_a_callback_that_raises_is_counted(self, db: DbApi, raised: type[BaseException]) -> None:
        def on_gain(_: int) -> None:
            raise raised("mine")

        with Election(db, "n", holder="a", lease_s=LEASE_S, on_gain=on_gain) as election:
            wait_until(lambda: election.statistics().callback_errors, WAIT_S, "the callback")
            election.wait_leader(timeout_s=WAIT_S)

    def test_waiting_ends(self, db: DbApi) -> None:
        with Election(db, "n", holder="a", lease_s=WAIT_S) as first:
            first.wait_leader(timeout_s=WAIT_S)
            with Election(db, "n", holder="b", lease_s=WAIT_S) as second:
                with pytest.raises(WaitTimeout):
                    second.wait_leader(timeout_s=0.01)
                second.close()
                with pytest.raises(Closed):
                    second.wait_leader(timeout_s=WAIT_S)

    def test_a_database_that_was_closed_first_does_not_hold_up_the_end(self, url: str) -> None:
        db = open_db(url)
        election = Election(db, "n", holder="a", lease_s=LEASE_S).start()
        election.wait_leader(timeout_s=WAIT_S)
        db.close()
        election.close(timeout_s=60 * WAIT_S)
        assert not election.is_leader()

    def test_renewals_are_no_news(self, db: DbApi) -> None:
        with Election(db, "n", holder="a", lease_s=LEASE_S) as election:
            wait_until(lambda: election.statistics().renewals >= 3, WAIT_S, "renewals")
        assert db.unpublished() == []
        assert own_tables.is_own(TABLE)

    def test_a_forked_child_leads_nothing(self, db: DbApi) -> None:
        with Election(db, "n", holder="a") as election:
            election.wait_leader(timeout_s=WAIT_S)
            assert in_forked_child(lambda: str((election.is_leader(), election.token()))) == "(False, None)"
            assert in_forked_child(lambda: outcome(election.start)) == Forked.__name__
            assert in_forked_child(lambda: str(election.close())) == "None"
            assert db.get(TABLE, "n").value["holder"] == "a"


class TestDatabaseInTrouble:
    def test_who_cannot_renew_stops_to_lead_in_time_and_leads_again(self) -> None:
        with RedisServer(config={"appendonly": "yes", "appendfsync": "always"}) as server:
            log = Log()
            with contextlib.closing(open_db(server.address)) as db, log.election(db, "a") as election:
                token = election.wait_leader(timeout_s=WAIT_S)
                wait_until(lambda: log.calls, WAIT_S, "the gain to be told")
                server.freeze()
                try:
                    # The thread that renews hangs in a call for longer than the lease.
                    wait_until(
                        lambda: log.calls[-1] is None and not election.is_leader(), WAIT_S, "the loss to be told"
                    )
                finally:
                    server.thaw()
                assert election.wait_leader(timeout_s=WAIT_S) > token
            tokens = [token for token in log.calls if token is not None]
            assert tokens == sorted(tokens)
            assert log.calls[::2] == tokens


def next_leader(children: list[ChildProcess], after: int = 0) -> tuple[ChildProcess, int]:
    """Whoever says that it has won, with a higher token."""

    def find() -> tuple[ChildProcess, int] | None:
        for child in children:
            with contextlib.suppress(WaitTimeout):
                token = child.receive(0.01).get("gained", 0)
                if token > after:
                    return child, token
        return None

    found = wait_until(find, WAIT_S, "a leader")
    assert found is not None
    return found


class TestProcesses:
    def test_the_killed_is_replaced(self, url: str) -> None:
        with contextlib.ExitStack() as stack:
            children = [stack.enter_context(candidate_process(url, "n", f"c{i}", LEASE_S)) for i in range(3)]
            token = 0
            while children:
                leader, token = next_leader(children, token)
                leader.kill()
                children.remove(leader)

    def test_the_frozen_is_replaced_and_knows_it(self) -> None:
        # Not in SQLite: who is frozen while it writes would keep the others from writing.
        with (
            RedisServer() as server,
            candidate_process(server.address, "n", "first", LEASE_S) as first,
            candidate_process(server.address, "n", "second", LEASE_S) as second,
        ):
            leader, token = next_leader([first, second])
            other = second if leader is first else first
            leader.stop()
            try:
                assert next_leader([other], token)[0] is other
            finally:
                leader.resume()
            while "lost" not in leader.receive():
                pass

    def test_who_resigns_is_replaced_at_once(self, url: str) -> None:
        with candidate_process(url, "n", "first", 3600) as first:
            _, token = next_leader([first])
            with contextlib.closing(open_db(url)) as db, Election(db, "n", holder="here", lease_s=2.0) as election:
                first.ask(ask="resign")
                assert election.wait_leader(timeout_s=WAIT_S) > token
