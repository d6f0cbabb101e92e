"""The long-poll protocol under everything that can happen, in virtual time; `tests.unit.drivers.longpoll.oracle`
watches."""

from __future__ import annotations

import pytest

from tests.unit.drivers.longpoll.world import (
    FILTERS,
    POLL_GRACE_S,
    POLL_INTERVAL_S,
    SESSION_TIMEOUT_S,
    TOPICS,
    Network,
    Subscriber,
    World,
)

REST_S = 2 * (POLL_INTERVAL_S + POLL_GRACE_S + SESSION_TIMEOUT_S)
"""More than it takes until everything is noticed and mended."""
SEEDS = 16
"""As many as `./run test` has time for; `./run chaos` plays more."""


def play(world: World, steps: int, *, misfortunes: float) -> None:
    """Publish, subscribe, unsubscribe; and now and then something goes wrong."""
    chance = world.random
    for _ in range(steps):
        for _ in range(chance.choice((0, 1, 1, 3, 60))):
            if world.publisher.is_alive and not world.publisher.is_frozen:
                world.publisher.publish(chance.choice(TOPICS))
        if chance.random() < 0.3 and world.publisher.is_alive:
            world.publisher.hello(chance.choice(TOPICS))
        subscriber = chance.choice(world.subscribers)
        if chance.random() < 0.5 and not subscriber.is_frozen:
            change(world, subscriber)
        if chance.random() < misfortunes:
            strike(world)
        world.run(chance.choice((0.0, 0.01, 0.3, 2.0)))


def change(world: World, subscriber: Subscriber) -> None:
    name = world.random.choice(FILTERS)
    if name in subscriber.wanted:
        subscriber.unsubscribe(name)
        if world.random.random() < 0.5:  # and back at once: an old subscription's frames are still on their way
            subscriber.subscribe(name)
    else:
        subscriber.subscribe(name)


def strike(world: World) -> None:
    chance = world.random
    position = chance.randrange(len(world.subscribers))
    subscriber, publisher = world.subscribers[position], world.publisher
    what = chance.choice(("kill", "leave", "freeze", "cut", "restart", "stun", "network"))
    if what == "kill":
        world.replace_subscriber(position)
    elif what == "leave":
        subscriber.leave()
        world.replace_subscriber(position)
    elif what == "freeze":
        subscriber.is_frozen = True
        world.after(chance.choice((1, 20, 70)), subscriber.thaw)
    elif what == "cut":
        world.is_cut = True
        world.after(chance.choice((0.2, 5, 60)), lambda: setattr(world, "is_cut", False))
    elif what == "restart":
        world.kill_publisher()
        world.after(chance.choice((0.0, 0.5, 40)), world.start_publisher)
    elif what == "stun":
        publisher.is_frozen = True
        world.after(chance.choice((1, 12, 20)), lambda: setattr(publisher, "is_frozen", False))
    else:
        world.network = Network(*(chance.choice((0.0, 0.05, 0.3)) for _ in range(3)))


def calm(world: World) -> None:
    """No more faults, and time to mend."""
    world.network = Network()
    world.is_cut = False
    world.publisher.is_frozen = False
    for subscriber in world.subscribers:
        subscriber.thaw()
    world.start_publisher()
    world.run(REST_S)


def end(world: World) -> None:
    """Rest, a last word to everybody, and goodbye: both sides must be empty then."""
    calm(world)
    world.oracle.check_rest()
    for topic in TOPICS:
        world.publisher.publish(topic)
    world.run(5.0)
    world.oracle.check_rest()
    for subscriber in world.subscribers:
        subscriber.leave()
    world.run(REST_S)
    world.oracle.check_empty()


def survive(seed: int) -> None:
    """One world with misfortunes, to its end."""
    world = World(seed)
    play(world, 120, misfortunes=0.1)
    end(world)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_the_invariants_hold(seed: int) -> None:
    survive(seed)


@pytest.mark.parametrize("seed", range(4))
def test_without_faults_nobody_is_lost_and_nothing_repeated(seed: int) -> None:
    world = World(seed)
    play(world, 100, misfortunes=0.0)
    end(world)
    counters = world.publisher.core.counters()
    assert counters.sessions_dead == counters.superseded == counters.unknown == counters.repeated_commands == 0
    for subscriber in world.subscribers:
        assert subscriber.core.counters.duplicates == subscriber.core.counters.failures == 0
        assert subscriber.core.counters.sessions == 1
