"""From the commit to the bus: who publishes, what leaves together, and that no commit waits."""

from __future__ import annotations

import pathlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import pytest

from nb_api import NbApi, notify_config
from nb_api.db_api import Change
from nb_api.writing import direct_way, pacing
from nb_api.writing.after_commit import AfterCommitPublisher
from nb_api.writing.publishing import PublishRefusal, ServicePublisher
from pubsub_api import Event
from pubsub_api.errors import TransportUnavailable, WaitTimeout
from tests.helpers.nb_tools import PATIENT_DB, memory_bus, open_nb, sqlite_url
from tests.helpers.waiting import wait_until

WAIT_S = 60.0


class Publications:
    """Sees every call of the publisher, and may hold it up or have it fail."""

    def __init__(self, nb: NbApi) -> None:
        assert nb.publisher is not None
        self._publish, self._flush = nb.publisher.publish, nb.publisher.flush
        nb.publisher.publish = self.publish  # type: ignore[method-assign]
        nb.publisher.flush = self.flush  # type: ignore[method-assign]
        self.calls: list[tuple[threading.Thread, list[int]]] = []
        self.before_publish: Callable[[], object] = lambda: None
        self.before_flush: Callable[[], object] = lambda: None
        self.flush_timeouts_s: list[float] = []

    def publish(self, changes: Sequence[Change]) -> list[PublishRefusal]:
        self.calls.append((threading.current_thread(), [change.revision for change in changes]))
        self.before_publish()
        return self._publish(changes)

    def flush(self, *, timeout_s: float) -> None:
        self.flush_timeouts_s.append(timeout_s)
        self.before_flush()
        self._flush(timeout_s=timeout_s)

    @property
    def revisions(self) -> list[int]:
        return [revision for _, revisions in self.calls for revision in revisions]

    def of_this_thread(self) -> list[int]:
        return [rev for thread, revisions in self.calls for rev in revisions if thread is threading.current_thread()]


@pytest.fixture(autouse=True)
def _nothing_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine under load is no slow subscriber."""
    monkeypatch.setattr(direct_way, "SLOW_S", WAIT_S)


@pytest.fixture
def nb(tmp_path: pathlib.Path) -> Iterator[NbApi]:
    with open_nb(sqlite_url(tmp_path), memory_bus(), db=PATIENT_DB) as nb:
        nb.create("port", "first", None, topic="t")
        nb.flush(timeout_s=WAIT_S)  # the way to the bus is known from here on
        yield nb


@pytest.fixture
def publications(nb: NbApi) -> Publications:
    return Publications(nb)


def test_a_lone_change_is_published_before_the_call_returns(nb: NbApi, publications: Publications) -> None:
    version = nb.put("port", "p1", 1, topic="t")
    assert publications.calls == [(threading.current_thread(), [version])]
    gone = nb.delete("port", "p1")
    assert publications.of_this_thread() == [version, gone]
    nb.flush(timeout_s=WAIT_S)
    assert nb.db.unpublished() == []


def test_the_first_change_of_a_process_is_published_by_the_thread(tmp_path: pathlib.Path) -> None:
    """It opens the publisher, which may take its time."""
    with open_nb(sqlite_url(tmp_path), memory_bus(), db=PATIENT_DB) as nb:
        publications = Publications(nb)
        version = nb.put("port", "p1", 1, topic="t")
        nb.flush(timeout_s=WAIT_S)
        assert publications.revisions == [version]
        assert publications.of_this_thread() == []


def test_what_changes_nothing_is_told_to_nobody(nb: NbApi, publications: Publications) -> None:
    version = nb.put("port", "p1", {"a": 1}, topic="t")
    assert nb.put("port", "p1", {"a": 1}, topic="t") == version
    assert nb.update("port", "p1", {"a": 1}) == version
    assert nb.update("port", "p1", lambda value: value) == version
    with nb.transaction() as txn:
        txn.put("port", "p1", {"a": 1}, topic="t")
    assert txn.versions == [version]
    nb.flush(timeout_s=WAIT_S)
    assert publications.revisions == [version]
    assert nb.statistics().unchanged == 4
    assert nb.db.revision() == version


def test_writes_need_no_read(nb: NbApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("read")

    for name in ("get", "changes", "changes_of", "snapshot"):
        monkeypatch.setattr(nb.db, name, refuse)
    nb.put("port", "p1", 1, topic="t")
    nb.put("port", "p1", 2, topic="u")
    nb.update("port", "p1", 3)
    with nb.transaction() as txn:
        txn.update("port", "p1", 4, topic="t")
        txn.put("port", "p2", 4, topic="t")
    nb.delete("port", "p1")
    nb.flush(timeout_s=WAIT_S)
    assert nb.statistics().handover.left == 0


def test_a_move_and_a_delete_are_told_with_the_topics_that_they_leave(nb: NbApi) -> None:
    heard: list[tuple[str, str, int]] = []

    def on_event(event: Event) -> None:
        if event.table == "port":
            heard.append((event.topic, event.action, event.version))

    assert nb.session is not None
    with nb.session.subscriber(["old", "new"], on_event) as listener:
        listener.wait_ready(timeout_s=WAIT_S)
        created = nb.put("port", "p1", 1, topic="old")
        moved = nb.put("port", "p1", 1, topic="new")
        gone = nb.delete("port", "p1")
        wait_until(lambda: len(heard) == 4, WAIT_S, "all events")
    assert set(heard) == {
        ("old", "create", created), ("new", "set", moved), ("old", "delete", moved), ("new", "delete", gone),
    }  # fmt: skip


def test_what_is_committed_while_another_publishes_leaves_together(nb: NbApi, publications: Publications) -> None:
    is_publishing, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        is_publishing.set()
        assert go_on.wait(WAIT_S)

    publications.before_publish = hold_up
    first: list[int] = []
    slow = threading.Thread(target=lambda: first.append(nb.put("port", "slow", 1, topic="t")))
    slow.start()
    assert is_publishing.wait(WAIT_S)
    rest = [nb.put("port", f"p{number}", 1, topic="t") for number in range(20)]  # none of them waits
    publications.before_publish = lambda: None
    go_on.set()
    slow.join(WAIT_S)
    nb.flush(timeout_s=WAIT_S)
    assert [revisions for _, revisions in publications.calls] == [first, rest]
    assert nb.statistics().handover.left == 0


def test_the_changes_of_a_flood_leave_together(
    nb: NbApi, publications: Publications, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "PAUSE_S", 3600.0)
    lone = [nb.put("port", f"p{number}", 1, topic="t") for number in range(pacing.BURST)]
    assert publications.of_this_thread() == lone
    rest = [nb.put("port", f"q{number}", 1, topic="t") for number in range(pacing.WORTH_IT - 1)]
    assert publications.of_this_thread() == lone
    nb.flush(timeout_s=WAIT_S)
    assert publications.calls[len(lone) :][-1][1] == rest
    assert publications.revisions == lone + rest


def test_what_a_pause_held_back_leaves_without_another_write(nb: NbApi, publications: Publications) -> None:
    versions = [nb.put("port", f"p{number}", 1, topic="t") for number in range(5 * pacing.BURST)]
    wait_until(lambda: publications.revisions == versions, WAIT_S, "the last of a flood to leave")


def test_a_way_is_proven_without_a_transaction(
    nb: NbApi, publications: Publications, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outbox is told seldom; whether what was published has left is asked whenever the way is full."""
    monkeypatch.setattr(direct_way, "CHANGES_MAX", 5)
    told: list[object] = []
    mark_published = nb.db.mark_published
    monkeypatch.setattr(nb.db, "mark_published", lambda revisions: (told.append(revisions), mark_published(revisions)))
    monkeypatch.setattr(nb._after_commit, "_confirm_interval_s", 3600.0)
    for number in range(2 * direct_way.CHANGES_MAX):
        flushes = len(publications.flush_timeouts_s)
        nb.put("port", f"p{number}", 1, topic="t")
        if number % direct_way.CHANGES_MAX == direct_way.CHANGES_MAX - 1:
            wait_until(lambda before=flushes: len(publications.flush_timeouts_s) > before, WAIT_S, "a flush")
    assert len(publications.of_this_thread()) == 2 * direct_way.CHANGES_MAX
    assert told == []
    nb.flush(timeout_s=WAIT_S)
    assert len(told) == 1
    assert nb.db.unpublished() == []


def test_no_commit_waits_for_a_bus_that_has_stopped_taking(
    nb: NbApi, publications: Publications, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on taking for a while, as a connection does whose other end has stopped; then nothing."""
    monkeypatch.setattr(direct_way, "CHANGES_MAX", 20)
    is_back = threading.Event()
    publications.before_flush = lambda: is_back.wait(WAIT_S)

    def take_a_little() -> None:
        if len(publications.revisions) > direct_way.CHANGES_MAX:
            is_back.wait(WAIT_S)

    publications.before_publish = take_a_little
    try:
        versions = [nb.put("port", f"p{number}", 1, topic="t") for number in range(direct_way.CHANGES_MAX + 50)]
        assert not is_back.is_set()
        assert 0 < len(publications.of_this_thread()) <= direct_way.CHANGES_MAX
    finally:
        is_back.set()
    nb.flush(timeout_s=WAIT_S)
    assert publications.revisions == versions
    assert nb.db.unpublished() == []


def test_after_a_failure_the_thread_publishes_until_the_way_is_proven(nb: NbApi, publications: Publications) -> None:
    def fail() -> None:
        raise TransportUnavailable("away")

    publications.before_publish = fail
    lost = nb.put("port", "p1", 1, topic="t")
    assert publications.of_this_thread() == [lost]
    publications.before_publish = lambda: None
    assert nb.statistics().handover.left == 1
    nb.put("port", "p2", 1, topic="t")
    nb.flush(timeout_s=WAIT_S)
    assert publications.of_this_thread() == [lost]
    again = nb.put("port", "p3", 1, topic="t")
    assert publications.of_this_thread() == [lost, again]
    nb.flush(timeout_s=WAIT_S)
    assert [change.revision for change in nb.db.unpublished()] == [lost]  # for the sweeper


def test_an_interrupt_while_publishing_stops_nobody_else(nb: NbApi, publications: Publications) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    publications.before_publish = interrupt
    with pytest.raises(KeyboardInterrupt):
        nb.put("port", "p1", 1, topic="t")
    publications.before_publish = lambda: None
    version = nb.put("port", "p2", 1, topic="t")
    nb.flush(timeout_s=WAIT_S)
    assert version in publications.revisions
    assert nb.statistics().handover.left == 1
    assert [change.key for change in nb.db.unpublished()] == ["p1"]


@pytest.mark.parametrize(
    ("step", "is_queued"),
    [("_is_alone", False), ("_begin_sending", False), ("_sent", False), ("_has_thread", True), ("_take", True)],
)
def test_an_interrupt_at_any_step_does_not_spoil_a_flush(
    step: str, is_queued: bool, nb: NbApi, publications: Publications, monkeypatch: pytest.MonkeyPatch
) -> None:
    nb.put("port", "p0", 1, topic="t")
    nb.flush(timeout_s=WAIT_S)
    inner, writer = getattr(AfterCommitPublisher, step), threading.get_ident()

    def interrupted(*arguments: object) -> object:
        result = inner(*arguments)
        if threading.get_ident() == writer:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patched:
        if is_queued:
            patched.setattr(AfterCommitPublisher, "_is_alone", lambda _: False)
        patched.setattr(AfterCommitPublisher, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            nb.put("port", "p1", 1, topic="t")
    nb.put("port", "p2", 1, topic="t")
    nb.flush(timeout_s=WAIT_S)
    counters = nb.statistics().handover
    assert counters.committed == counters.confirmed + counters.left


def test_many_threads_publish_everything_once(nb: NbApi, publications: Publications) -> None:
    def work(number: int) -> None:
        for turn in range(20):
            nb.put("port", f"{number}-{turn}", turn, topic=f"t{number % 3}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    nb.flush(timeout_s=WAIT_S)
    expected = [change.revision for change in nb.db.changes(0, limit=1000) if change.key != "first"]
    assert sorted(publications.revisions) == expected
    assert all(revisions == sorted(revisions) for _, revisions in publications.calls)
    assert nb.db.unpublished() == []


def test_closing_takes_no_longer_than_publish_timeout_in_all(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a publisher service that is frozen, say."""
    monkeypatch.setattr(notify_config, "PUBLISH_TIMEOUT_S", 0.5)
    nb = open_nb(sqlite_url(tmp_path), memory_bus(), db=PATIENT_DB)
    publications = Publications(nb)

    def time_out() -> None:
        raise WaitTimeout("nobody is there")

    publications.before_flush = time_out
    nb.put("port", "p1", 1, topic="t")
    wait_until(lambda: publications.flush_timeouts_s, WAIT_S, "a first attempt")
    before = len(publications.flush_timeouts_s)
    nb.close()
    given_s = publications.flush_timeouts_s[before + 1 :]  # one may have been about to begin
    assert given_s == sorted(given_s, reverse=True)
    assert all(0 <= timeout_s <= 0.5 for timeout_s in given_s)


class HeldUpWorker:
    """A worker's publisher whose service does not answer."""

    def __init__(self) -> None:
        self.closed_with: dict[str, float] = {}

    def flush(self, *, timeout_s: float) -> None:
        raise WaitTimeout(f"not within {timeout_s} s")

    def close(self, **options: float) -> None:
        self.closed_with = options


def test_a_service_that_was_waited_for_in_vain_is_not_waited_for_at_the_end() -> None:
    worker = HeldUpWorker()
    publisher = ServicePublisher(worker)  # type: ignore[arg-type]  # it needs no more of it
    with pytest.raises(WaitTimeout):
        publisher.flush(timeout_s=0.0)
    publisher.close()
    assert worker.closed_with == {"timeout_s": 0.0}


def test_a_writer_enters_no_condition(nb: NbApi) -> None:
    """Its lock instead: `Condition.__enter__` is Python, and an interrupt within it would leave the lock held."""
    entered: list[str] = []

    def look(frame: FrameType, kind: str, _argument: object) -> None:
        if kind == "call" and frame.f_code is threading.Condition.__enter__.__code__ and frame.f_back is not None:
            entered.append(frame.f_back.f_code.co_filename)

    sys.setprofile(look)
    try:
        nb.put("port", "p1", 1, topic="t")
        nb.flush(timeout_s=WAIT_S)
    finally:
        sys.setprofile(None)
    assert [where for where in entered if "/nb_api/writing/" in where or "/drivers/db/" in where] == []
