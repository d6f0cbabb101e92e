"""A mailbox: order, acknowledgement, bounds, and what its policies do to frames without hiding it."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from heliograph_drivers.pubsub.longpoll.core.mailbox import ENTRY_BYTES, Bounds, MailboxPolicy, SubscriberMailbox
from pubsub_api.core import frame as frames
from pubsub_api.core.errors import BadSignature
from pubsub_api.core.frame import Kind, read_stamp, with_after

GUID = bytes(range(16))
KEY = b"secret"
ROOMY = Bounds(frames_max=1000, bytes_max=10**6, reply_frames_max=100, reply_bytes_max=10**6)


def data(topic: str, number: int, *, count: int = 1, key: bytes | None = None, guid: bytes = GUID) -> bytes:
    return frames.pack(Kind.DATA, guid, topic, b"\x90", first=number, after=number - 1, count=count, key=key)


def hello(topic: str, head: int) -> bytes:
    return frames.pack(Kind.HELLO, GUID, topic, b"\x80", first=head + 1, after=head)


def taken(mailbox: SubscriberMailbox) -> list[bytes]:
    return [frame for _, run in mailbox.take()[1] for frame in run]


def numbers(mailbox: SubscriberMailbox, key: bytes | None = None) -> list[tuple[int, int]]:
    """(after, first) of what is taken."""
    headers = [frames.unpack(frame, bytes_max=10**6, key=key) for frame in taken(mailbox)]
    return [(header.after, header.first) for header in headers]


def drain(mailbox: SubscriberMailbox) -> None:
    """Nothing must be left, neither frames nor bytes."""
    while mailbox.has_mail:
        mailbox.take()
        mailbox.acknowledge(mailbox.numbered)
    assert (len(mailbox), mailbox.held_bytes) == (0, 0)
    assert not mailbox._latest
    assert not mailbox._lossy


# -- the stamp


def test_a_stamp_is_what_the_header_says() -> None:
    stamp = read_stamp(data("t/x", 7, count=3))
    assert stamp is not None
    assert (stamp.kind, stamp.first, stamp.after, stamp.events) == (Kind.DATA, 7, 6, 3)
    assert stamp.stream == (GUID, b"t/x")
    assert not stamp.is_signed
    elsewhere = read_stamp(data("日本/東京", 1))
    assert elsewhere is not None
    assert elsewhere.stream == (GUID, "日本/東京".encode())


@pytest.mark.parametrize("junk", [b"", b"junk", b"\x9c\xa2HG", data("t", 1)[:60]])
def test_bytes_that_are_no_frame_have_no_stamp(junk: bytes) -> None:
    assert read_stamp(junk) is None
    assert with_after(junk, 3, None) == junk


def test_another_after_changes_nothing_else() -> None:
    frame = data("t", 9, count=2)
    header = frames.unpack(with_after(frame, 4, None), bytes_max=1000)
    assert header == frames.unpack(frame, bytes_max=1000)._replace(after=4)
    assert with_after(frame, 8, None) is frame


def test_a_signed_frame_is_signed_again() -> None:
    frame = data("t", 9, key=KEY)
    changed = with_after(frame, 4, KEY)
    assert frames.unpack(changed, bytes_max=1000, key=KEY).after == 4
    forged = bytearray(frame)
    forged[42] = 4
    with pytest.raises(BadSignature):
        frames.unpack(bytes(forged), bytes_max=1000, key=KEY)
    with pytest.raises(ValueError, match="without the key"):
        with_after(frame, 4, None)


# -- lossless


def test_frames_come_in_order_and_again_until_acknowledged() -> None:
    mailbox = SubscriberMailbox(ROOMY)
    sent = [data("t", number) for number in range(1, 6)]
    for frame in sent[:3]:
        mailbox.put(frame, 7, MailboxPolicy.LOSSLESS)
    assert mailbox.take() == (1, [(7, sent[:3])])
    mailbox.put(sent[3], 7, MailboxPolicy.LOSSLESS)
    assert mailbox.take() == (1, [(7, sent[:3])]), "a lost answer is sent again, as it was"
    mailbox.acknowledge(2)
    assert mailbox.take() == (3, [(7, sent[2:3])])
    mailbox.acknowledge(3)
    mailbox.put(sent[4], 8, MailboxPolicy.LOSSLESS)
    assert mailbox.take() == (4, [(7, sent[3:4]), (8, sent[4:])])
    mailbox.acknowledge(1)  # an old poll: no effect
    assert len(mailbox) == 2
    drain(mailbox)


def test_an_answer_is_bounded_by_count_and_by_bytes() -> None:
    size = len(data("t", 1))
    mailbox = SubscriberMailbox(Bounds(1000, 10**6, reply_frames_max=4, reply_bytes_max=3 * size))
    for number in range(1, 8):
        mailbox.put(data("t", number), 0, MailboxPolicy.LOSSLESS)
    assert len(taken(mailbox)) == 3
    mailbox.acknowledge(3)
    mailbox = SubscriberMailbox(Bounds(1000, 10**6, reply_frames_max=4, reply_bytes_max=10 * size))
    for number in range(1, 8):
        mailbox.put(data("t", number), 0, MailboxPolicy.LOSSLESS)
    assert len(taken(mailbox)) == 4


def test_a_frame_larger_than_an_answer_goes_alone() -> None:
    mailbox = SubscriberMailbox(Bounds(1000, 10**6, reply_frames_max=4, reply_bytes_max=10))
    for number in (1, 2):
        mailbox.put(data("t", number), 0, MailboxPolicy.LOSSLESS)
    assert len(taken(mailbox)) == 1
    mailbox.acknowledge(1)
    assert len(taken(mailbox)) == 1
    drain(mailbox)


def test_what_is_too_much_is_noticed_and_given_up_as_a_whole() -> None:
    mailbox = SubscriberMailbox(Bounds(3, 10**6, 2, 10**6))
    mailbox.put(data("t", 1), 0, MailboxPolicy.LOSSLESS)
    mailbox.put(data("t", 2), 0, MailboxPolicy.LOSSLESS)
    mailbox.take()
    for number in range(3, 7):
        assert not mailbox.is_overfull, "what is under way does not count"
        mailbox.put(data("t", number), 0, MailboxPolicy.LOSSLESS)
    assert mailbox.is_overfull
    assert mailbox.clear() == 6
    assert not mailbox.is_overfull
    assert mailbox.number_a_mark() == 3, "numbers go on"
    drain(mailbox)


def test_many_small_frames_count_as_bytes_too() -> None:
    mailbox = SubscriberMailbox(Bounds(10**6, 10 * (ENTRY_BYTES + len(b"x")), 2, 10**6))
    for _ in range(10):
        mailbox.put(b"x", 0, MailboxPolicy.LOSSLESS)
    assert not mailbox.is_overfull
    mailbox.put(b"x", 0, MailboxPolicy.LOSSLESS)
    assert mailbox.is_overfull


# -- latest


def test_of_a_stream_the_newest_stays_and_says_what_it_follows() -> None:
    mailbox = SubscriberMailbox(ROOMY)
    mailbox.put(data("t/a", 1), 0, MailboxPolicy.LATEST)
    mailbox.put(data("t/b", 1), 0, MailboxPolicy.LATEST)
    mailbox.put(data("t/a", 2, count=3), 0, MailboxPolicy.LATEST)
    mailbox.put(data("t/a", 5), 0, MailboxPolicy.LATEST)
    headers = [frames.unpack(frame, bytes_max=1000) for frame in taken(mailbox)]
    assert [(header.topic, header.after, header.first) for header in headers] == [("t/b", 0, 1), ("t/a", 0, 5)]
    assert mailbox.coalesced == mailbox.take_skipped() == 4
    assert mailbox.take_skipped() == 0, "told once"
    drain(mailbox)


def test_what_was_taken_is_not_replaced() -> None:
    mailbox = SubscriberMailbox(ROOMY)
    mailbox.put(data("t", 1), 0, MailboxPolicy.LATEST)
    assert numbers(mailbox) == [(0, 1)]
    for number in (2, 3):
        mailbox.put(data("t", number), 0, MailboxPolicy.LATEST)
    assert numbers(mailbox) == [(0, 1)], "the same answer again"
    mailbox.acknowledge(1)
    assert numbers(mailbox) == [(1, 3)]
    drain(mailbox)


def test_publishers_of_the_same_topic_do_not_replace_each_other() -> None:
    mailbox = SubscriberMailbox(ROOMY)
    mailbox.put(data("t", 1), 0, MailboxPolicy.LATEST)
    mailbox.put(data("t", 1, guid=bytes(16)), 0, MailboxPolicy.LATEST)
    assert len(taken(mailbox)) == 2
    drain(mailbox)


def test_a_hello_never_comes_before_the_data_it_tells_of() -> None:
    mailbox = SubscriberMailbox(ROOMY)
    mailbox.put(data("t", 1), 0, MailboxPolicy.LATEST)
    mailbox.put(hello("t", 1), 0, MailboxPolicy.LATEST)
    mailbox.put(data("t", 2), 0, MailboxPolicy.LATEST)
    mailbox.put(hello("t", 2), 0, MailboxPolicy.LATEST)
    mailbox.put(hello("t", 2), 0, MailboxPolicy.LATEST)
    headers = [frames.unpack(frame, bytes_max=1000) for frame in taken(mailbox)]
    assert [(header.kind, header.first) for header in headers] == [(Kind.DATA, 2), (Kind.HELLO, 3)]
    drain(mailbox)


def test_a_signed_frame_is_coalesced_only_with_the_key() -> None:
    keyless, owner = SubscriberMailbox(ROOMY), SubscriberMailbox(ROOMY, KEY)
    for number in (1, 2, 3):
        for mailbox in (keyless, owner):
            mailbox.put(data("t", number, key=KEY), 0, MailboxPolicy.LATEST)
    assert numbers(keyless, KEY) == [(0, 1), (1, 2), (2, 3)]
    assert numbers(owner, KEY) == [(0, 3)]


# -- lossy


def test_the_oldest_lossy_frames_make_room() -> None:
    mailbox = SubscriberMailbox(Bounds(4, 10**6, 100, 10**6))
    mailbox.put(data("must", 1), 0, MailboxPolicy.LOSSLESS)
    for number in range(1, 8):
        mailbox.put(data("may", number), 0, MailboxPolicy.LOSSY)
        assert not mailbox.is_overfull
    assert numbers(mailbox) == [(0, 1), (0, 5), (5, 6), (6, 7)]
    assert mailbox.dropped == mailbox.take_skipped() == 4
    drain(mailbox)


def test_lossy_frames_make_room_for_all_others_while_there_are_any() -> None:
    mailbox = SubscriberMailbox(Bounds(2, 10**6, 100, 10**6))
    mailbox.put(data("may", 1), 0, MailboxPolicy.LOSSY)
    mailbox.put(data("latest", 1), 0, MailboxPolicy.LATEST)
    mailbox.put(data("must", 1), 0, MailboxPolicy.LOSSLESS)
    assert not mailbox.is_overfull
    assert mailbox.dropped == 1
    mailbox.put(data("may", 2), 0, MailboxPolicy.LOSSY)
    assert (len(mailbox), mailbox.dropped) == (2, 2), "there is no room for it"
    mailbox.put(data("must", 2), 0, MailboxPolicy.LOSSLESS)
    assert mailbox.is_overfull


def test_a_stream_of_which_the_end_was_dropped_says_so_with_its_next_frame() -> None:
    mailbox = SubscriberMailbox(Bounds(2, 10**6, 100, 10**6))
    mailbox.put(data("a", 1), 0, MailboxPolicy.LOSSY)
    for number in (1, 2):
        mailbox.put(data("b", number), 0, MailboxPolicy.LOSSY)
    mailbox.put(hello("a", 1), 0, MailboxPolicy.LOSSY)
    assert numbers(mailbox) == [(0, 2)], "the hello would claim a head that never came"
    assert mailbox.withheld == 1
    mailbox.acknowledge(mailbox.numbered)
    mailbox.put(data("a", 2), 0, MailboxPolicy.LOSSY)
    assert numbers(mailbox) == [(0, 2)]
    mailbox.acknowledge(mailbox.numbered)
    mailbox.put(hello("a", 2), 0, MailboxPolicy.LOSSY)
    assert len(taken(mailbox)) == 1
    drain(mailbox)


# -- unsubscribing


def test_what_nobody_wants_any_more_is_forgotten() -> None:
    mailbox = SubscriberMailbox(ROOMY)
    mailbox.put(data("a", 1), 0, MailboxPolicy.LOSSLESS)
    mailbox.put(data("b", 1), 0, MailboxPolicy.LATEST)
    mailbox.put(b"no frame", 0, MailboxPolicy.LOSSLESS)
    mailbox.put(data("b", 2), 0, MailboxPolicy.LATEST)
    assert mailbox.waiting_topics() == {b"a", b"b"}
    mailbox.keep_topics({b"a": True, b"b": False})
    assert taken(mailbox) == [data("a", 1), b"no frame"]
    drain(mailbox)


# -- all of it


@hypothesis.given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(list(MailboxPolicy)), st.integers(0, 3)),
            st.just("take"), st.just("acknowledge"), st.just("clear"),
        ),
        max_size=80,
    )
)  # fmt: skip
def test_numbers_are_continuous_and_nothing_leaks(steps: list[object]) -> None:
    """What comes follows what came before it, or `clear` was called in between."""
    mailbox = SubscriberMailbox(Bounds(12, 10**5, 3, 10**5))
    heads: dict[str, int] = {}
    seen: dict[str, int] = {}
    received = 0
    for step in steps:
        if isinstance(step, tuple):
            topic = f"{step[0].value}/{step[1]}"
            heads[topic] = heads.get(topic, 0) + 1
            mailbox.put(data(topic, heads[topic]), 0, step[0])
        elif step == "clear" or mailbox.is_overfull:
            mailbox.clear()
            seen = dict(heads)
        else:
            first, runs = mailbox.take()
            for number, frame in enumerate((frame for _, run in runs for frame in run), first):
                header = frames.unpack(frame, bytes_max=1000)
                if number > received:
                    assert header.after == seen.get(header.topic, 0)
                    seen[header.topic] = header.last
                    received = number
            if step == "acknowledge":
                mailbox.acknowledge(received)
        entries = [entry for entry in mailbox._waiting if entry.is_waiting] + mailbox._sent
        assert len(mailbox) == len(entries)
        assert mailbox.held_bytes == sum(len(entry.frame) + ENTRY_BYTES for entry in entries)
    drain(mailbox)
