"""Queries: a query goes to all responders, and the replies go only to the subscriber that asked."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterable, Sequence

import pytest

from pubsub_api.core.frame import Kind
from pubsub_api.errors import NotSupported, TransportUnavailable
from pubsub_api.testing.conformance.base import ConformanceBase
from pubsub_api.testing.conformance.stage import Listener, Speaker, Stage, wait_routed
from pubsub_api.testing.frames import header
from pubsub_api.testing.receivers import eventually

QUERIES = 1_000
WINDOW = 50
LARGE_REPLY_BYTES = 512 * 1024


def skip_without_queries(stage: Stage) -> None:
    if not stage.capabilities.queries:
        pytest.skip("the driver has no queries")


def serving(stage: Stage, speaker: Speaker, parts: int = 1, size: int = 10) -> Speaker:
    skip_without_queries(stage)
    speaker.api.serve(speaker.echo(parts, size))
    return speaker


def asker(stage: Stage, *speakers: Speaker) -> Listener:
    """A subscriber whose queries are known to reach these publishers."""
    listener = stage.subscriber("t")
    wait_routed(listener, speakers)
    return listener


def answered(listener: Listener, start: int = 0) -> collections.Counter[int]:
    """Query -> number of its replies, among the frames received from position ``start`` on."""
    headers = (header(frame) for frame in listener.heard.frames[start:])
    return collections.Counter(seen.first for seen in headers if seen.kind == Kind.REPLY)


def wait_answered(listener: Listener, numbers: Sequence[int], start: int) -> None:
    """Block until each of these queries has a reply, among the frames received from position ``start`` on."""
    wanted = set(numbers)
    listener.heard.wait_until(lambda: wanted <= answered(listener, start).keys(), f"answers to {len(wanted)} queries")


class QueryConformance(ConformanceBase):
    def test_a_driver_without_queries_says_so(self, stage: Stage) -> None:
        if stage.capabilities.queries:
            pytest.skip("the driver has queries")
        speaker = stage.publisher()
        listener = stage.subscriber("t")
        with pytest.raises(NotSupported):
            speaker.api.serve(speaker.echo())
        with pytest.raises(NotSupported):
            listener.ask()

    def test_an_answer_reaches_only_the_subscriber_that_asked(self, stage: Stage) -> None:
        speaker = serving(stage, stage.publisher())
        first, second = asker(stage, speaker), asker(stage, speaker)
        for one, other in ((first, second), (second, first)):
            number = one.ask()
            assert one.wait_answers(number, 1) == [(speaker.frames.guid, 0)]
            other.wait_answers(other.ask(), 1)
            assert other.answers(number) == []

    def test_the_handler_gets_the_query_unchanged(self, stage: Stage) -> None:
        skip_without_queries(stage)
        speaker = stage.publisher()
        asked: list[bytes] = []

        def remember(query: bytes) -> Iterable[bytes]:
            asked.append(query)
            return [speaker.frames.reply(query)]

        speaker.api.serve(remember)
        listener = asker(stage, speaker)
        number, query = listener.new_query()
        listener.api.query(query)
        listener.wait_answers(number, 1)
        assert asked.count(query) == 1

    def test_an_answer_may_have_several_parts_and_keeps_their_order(self, stage: Stage) -> None:
        speaker = serving(stage, stage.publisher(), parts=20)
        listener = asker(stage, speaker)
        answers = listener.wait_answers(listener.ask(), 20)
        assert answers == [(speaker.frames.guid, part) for part in range(20)]

    def test_the_parts_may_come_from_a_generator(self, stage: Stage) -> None:
        skip_without_queries(stage)
        speaker = stage.publisher()
        speaker.api.serve(lambda query: (speaker.frames.reply(query, part) for part in range(3)))
        listener = asker(stage, speaker)
        assert len(listener.wait_answers(listener.ask(), 3)) == 3

    def test_every_publisher_that_serves_answers(self, stage: Stage) -> None:
        speakers = [serving(stage, stage.publisher(), parts=2), serving(stage, stage.second_publisher(), parts=2)]
        listener = asker(stage, *speakers)
        number, query = listener.new_query()
        assert listener.api.query(query) in (None, 2)
        answers = listener.wait_answers(number, 4)
        assert sorted(answers) == sorted((speaker.frames.guid, part) for speaker in speakers for part in (0, 1))

    def test_a_publisher_may_begin_to_serve_later(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("t")
        listener.heard.wait_frame(speaker.send("t"))
        serving(stage, speaker)
        wait_routed(listener, [speaker])

    def test_a_publisher_that_comes_back_answers_again(self, stage: Stage, driver_url: str) -> None:
        url = self.lasting_url(driver_url)
        speaker = serving(stage, stage.publisher(stage.at(url)))
        listener = asker(stage, speaker)
        speaker.api.close()
        successor = serving(stage, stage.publisher(stage.at(url)))
        wait_routed(listener, [successor])
        number = listener.ask()
        assert listener.wait_answers(number, 1) == [(successor.frames.guid, 0)]

    def test_a_handler_may_return_no_reply(self, stage: Stage) -> None:
        skip_without_queries(stage)
        speaker = stage.publisher()
        asked: list[int] = []
        is_choosy = threading.Event()

        def answer_odd_numbers(query: bytes) -> Iterable[bytes]:
            number = header(query).first
            asked.append(number)
            return [] if is_choosy.is_set() and number % 2 == 0 else [speaker.frames.reply(query)]

        speaker.api.serve(answer_odd_numbers)
        listener = asker(stage, speaker)
        is_choosy.set()
        numbers = [listener.ask() for _ in range(10)]
        eventually(lambda: set(numbers) <= set(asked), "every query reaches the handler")
        for number in reversed(numbers):
            assert len(listener.wait_answers(number, number % 2)) == number % 2

    def test_a_handler_that_raises_kills_nothing(self, stage: Stage) -> None:
        skip_without_queries(stage)
        speaker = stage.publisher()
        asked: list[int] = []
        raised: list[int] = []
        is_broken = threading.Event()

        def answer_odd_numbers(query: bytes) -> Iterable[bytes]:
            number = header(query).first
            asked.append(number)
            if is_broken.is_set() and number % 2 == 0:
                raised.append(number)
                raise RuntimeError("a handler that breaks its contract")
            return [speaker.frames.reply(query)]

        assert speaker.api.handler_errors == 0
        speaker.api.serve(answer_odd_numbers)
        listener = asker(stage, speaker)
        is_broken.set()
        numbers = [listener.ask() for _ in range(10)]
        eventually(lambda: set(numbers) <= set(asked), "every query reaches the handler")
        for number in numbers:
            listener.wait_answers(number, number % 2)
        listener.heard.wait_frame(speaker.send("t"))
        eventually(
            lambda: speaker.api.handler_errors == len(raised) >= 5,
            "every query on which it raised is counted",
        )

    def test_a_handler_that_raises_in_the_middle_is_counted_and_asked_again(self, stage: Stage) -> None:
        skip_without_queries(stage)
        speaker = stage.publisher()
        broken: list[int] = []

        def break_off_once(query: bytes) -> Iterable[bytes]:
            yield speaker.frames.reply(query)
            if not broken:
                broken.append(header(query).first)
                raise RuntimeError("a handler that breaks its contract after the first part of its answer")
            yield speaker.frames.reply(query, 1)

        speaker.api.serve(break_off_once)
        listener = asker(stage, speaker)
        eventually(lambda: speaker.api.handler_errors == 1, "the answer that broke off is counted")
        numbers = [listener.ask() for _ in range(3)]  # a loaded transport may lose one
        eventually(lambda: any(len(listener.answers(number)) == 2 for number in numbers), "a whole answer")

    def test_a_query_without_responders_disturbs_nothing(self, stage: Stage) -> None:
        skip_without_queries(stage)
        speaker = stage.publisher()
        listener = stage.subscriber("t")
        for _ in range(10):
            with contextlib.suppress(TransportUnavailable):  # allowed: it says that the query reached no responder
                listener.ask()
        frame = speaker.send("t")
        assert listener.heard.wait_frames(1) == [frame]

    def test_a_thousand_queries_are_answered_one_by_one(self, stage: Stage) -> None:
        speaker = serving(stage, stage.publisher())
        listener = asker(stage, speaker)
        numbers: list[int] = []
        for _ in range(0, QUERIES, WINDOW):
            before = len(listener.heard.frames)
            window = [listener.ask() for _ in range(WINDOW)]
            wait_answered(listener, window, before)
            numbers += window
        found = answered(listener)
        assert [found[number] for number in numbers] == [1] * QUERIES

    def test_large_answers_arrive(self, stage: Stage) -> None:
        speaker = serving(stage, stage.publisher(), parts=4, size=LARGE_REPLY_BYTES)
        listener = asker(stage, speaker)
        numbers = [listener.ask() for _ in range(3)]  # a loaded transport may lose one
        eventually(lambda: any(len(listener.answers(number)) == 4 for number in numbers), "a whole answer")
        whole = next(answer for number in numbers if len(answer := listener.answers(number)) == 4)
        assert [part for _, part in whole] == [0, 1, 2, 3]
        assert all(len(frame) > LARGE_REPLY_BYTES for frame in listener.heard.frames)

    def test_queries_and_frames_share_a_link(self, stage: Stage) -> None:
        speaker = serving(stage, stage.publisher())
        listener = asker(stage, speaker)
        sent, numbers = [], []
        for _ in range(100):
            sent.append(speaker.send("t"))
            numbers.append(listener.ask())
        for number in numbers:
            listener.wait_answers(number, 1)
        for frame in sent:
            listener.heard.wait_frame(frame)
        assert [frame for frame in listener.heard.frames if frame in sent] == sent
