"""The checks at the end of a run, after the quiet time: no subscriber may be owed anything any more."""

from __future__ import annotations

from pubsub_api.core.receiving.instream import InStream, InStreamState
from pubsub_api.core.settings import PublisherSettings, SubscriberSettings
from pubsub_api.testing.simulator.network import Network
from pubsub_api.testing.simulator.oracle import Oracle, StreamKey, View
from pubsub_api.testing.simulator.publishers import SimPublisher
from pubsub_api.testing.simulator.subscribers import SimSubscriber
from pubsub_api.testing.simulator.world import Violation


def settling_s(publisher: PublisherSettings, subscriber: SubscriberSettings, streams: int) -> float:
    """How long the network must be quiet until every loss was noticed, and repaired or reported by a resync.

    A head that was announced before a resync, and whose events had not arrived by then, counts only when it is
    announced again.  So the hellos of all streams of a publisher must have come once more, and their rate is limited.
    """
    repair_s = 1.5 * subscriber.repair_timeout_s * float(2**subscriber.repair_attempts_max)
    resync_s = subscriber.resync_jitter_s + subscriber.resync_interval_min_s
    join_s = subscriber.ready_timeout_s + 0.5
    hello_s = max(publisher.idle_time_limit_s, streams / publisher.hello_rate_max)
    living_s = hello_s + subscriber.message_delay_window_s + repair_s
    dead_s = subscriber.forget_time_s + 2 * subscriber.max_idle_time_s
    return max(living_s, dead_s) + join_s + resync_s


def check_settled(oracle: Oracle, network: Network) -> None:
    """Every living subscriber is owed nothing, waits for nothing, and has a correct copy of the database."""
    for subscriber in network.subscribers:
        if subscriber.is_alive:
            view = oracle.views[subscriber]
            _check_counts(subscriber)
            if any(network.is_there(address) for address in network.addresses()):
                _check_joined(subscriber, view)
                _check_idle(subscriber)
            _check_debts(subscriber, view, oracle)
            _check_cache(subscriber, view, oracle)
            if oracle.profile.delivers_new_lives:
                _check_new_lives(subscriber, view, network)
    for publisher in network.publishers:
        _check_hello_rate(publisher, oracle.world.now)


def check_traffic(oracle: Oracle, network: Network) -> None:
    """Without faults there are queries only at joins."""
    joins = sum(sum(view.resyncs.values()) for view in oracle.views.values())
    links = sum(len(network.addresses()) for _ in oracle.views)
    changes = sum(len(view.in_force) for view in oracle.views.values())
    queries = network.queries - network.idle_queries
    if queries > joins + links + changes:
        raise Violation(f"{queries} queries, more than {joins} resyncs and {links} links explain")
    for subscriber in network.subscribers:
        counters = subscriber.core.counters
        # History may begin in the middle of a frame; the events before that count as repeated.
        repeated = 0 if subscriber.has_history else counters.intake.duplicates
        if counters.repair.gaps or counters.repair.queries or counters.lost or repeated or counters.bad_frames:
            raise Violation(f"{subscriber.name} saw faults where there were none: {counters}")


def _check_joined(subscriber: SimSubscriber, view: View) -> None:
    if not subscriber.core.is_ready:
        raise Violation(f"{subscriber.name} is not ready")
    missing = [topic_filter for topic_filter in subscriber.core.filters if topic_filter not in view.in_force]
    if missing:
        raise Violation(f"{subscriber.name} never resynced for its filters {missing}")


def _check_idle(subscriber: SimSubscriber) -> None:
    """Nothing waits, except in a subscriber that has had to forget streams: it begins with them again and again."""
    for stream in _streams(subscriber):
        is_idle = stream.state is InStreamState.LIVE and not stream.has_hole and not stream.parked
        if not is_idle and not subscriber.core.counters.peers.streams_evicted:
            raise Violation(
                f"{subscriber.name}: {stream.topic} of {stream.guid.hex()[:8]} is still {stream.state.value}, "
                f"next {stream.next}, head {stream.head}, {len(stream.parked)} parked"
            )


def _check_counts(subscriber: SimSubscriber) -> None:
    core = subscriber.core
    streams = _streams(subscriber)
    if core.room.is_full or subscriber.queue_bytes:
        raise Violation(f"{subscriber.name} has not taken all that was ready for it")
    parked = sum(len(frame) for stream in streams for frame, _ in stream.parked.values())
    if core.parked_bytes != parked:
        raise Violation(f"{subscriber.name} counts {core.parked_bytes} parked bytes and has {parked}")
    if core.counters.peers.streams != len(streams):
        raise Violation(f"{subscriber.name} counts {core.counters.peers.streams} streams and has {len(streams)}")


def _streams(subscriber: SimSubscriber) -> list[InStream]:
    return [stream for publisher in subscriber.core.publishers.values() for stream in publisher.streams.values()]


def _check_debts(subscriber: SimSubscriber, view: View, oracle: Oracle) -> None:
    for key, first in view.owed_from.items():
        received = view.received.get(key, set())
        start = max(first, view.covered.get(key, 0) + 1)
        owed = [number for number in range(start, oracle.streams[key].head + 1) if number not in received]
        if owed and not _is_excused(view, key, owed[0]):
            raise Violation(f"{subscriber.name} lost {key[1]} {owed} of {key[0].hex()[:8]} and was not told")


def _check_new_lives(subscriber: SimSubscriber, view: View, network: Network) -> None:
    """Every event of a living publisher that started after the subscriber was ready has been delivered."""
    for publisher in network.publishers:
        if not publisher.is_alive or publisher.born <= view.ready_at:
            continue
        for topic, head in publisher.core.heads().items():
            received = view.received.get((publisher.core.guid, topic), set())
            lacking = [number for number in range(1, head + 1) if number not in received]
            if lacking and view.is_in_force(topic):
                raise Violation(f"{subscriber.name} never got {topic} {lacking} of {publisher.label}, which is younger")


def _is_excused(view: View, key: StreamKey, number: int) -> bool:
    """A subscriber is not owed events of a publisher that it never received, or has forgotten, unless a link to it was
    reported up since."""
    return key[0] not in view.reached and number > view.unexcused.get(key, 0)


def _check_cache(subscriber: SimSubscriber, view: View, oracle: Oracle) -> None:
    for slot, (version, stream_key, number) in oracle.database.items():
        if not view.is_in_force(slot[0]) or _is_excused(view, stream_key, number):
            continue
        if view.cache.get(slot, 0) != version:
            raise Violation(
                f"{subscriber.name} holds version {view.cache.get(slot, 0)} of {slot}, the database has {version}"
            )


def _check_hello_rate(publisher: SimPublisher, now: float) -> None:
    core = publisher.core
    age_s = now - publisher.born
    control = age_s / core.settings.max_idle_time_s + publisher.announcements + 3 + len(core.streams) / 100
    bound = core.frames + core.settings.hello_rate_max * (age_s + 1) + control
    if core.hellos > bound:
        raise Violation(f"{publisher.label} sent {core.hellos} hellos in {age_s:.1f} s for {core.frames} data frames")
