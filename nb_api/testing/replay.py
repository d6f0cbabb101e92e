"""A model of a database, to which changes are applied; and a reader that follows the feed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from nb_api.db_api import Change, DbApi, DbObject
from pubsub_api.errors import WaitTimeout

WAIT_S = 60.0
"""Deadline that only a broken driver exceeds, even on a loaded machine."""


class Held(NamedTuple):
    topic: str
    value: Any
    version: int


State = dict[tuple[str, str], Held]


def state_of(objects: Iterable[DbObject]) -> State:
    """Objects by table and key.  Raises AssertionError when one is there twice."""
    state: State = {}
    for item in objects:
        assert (item.table, item.key) not in state, f"{item.table}/{item.key} is there twice"
        state[item.table, item.key] = Held(item.topic, item.value, item.version)
    return state


def apply(state: State, changes: Iterable[Change]) -> State:
    """The state after these changes.  Raises AssertionError for a change that contradicts the state before it."""
    state = dict(state)
    for change in changes:
        name = (change.table, change.key)
        before = state.get(name)
        assert (before is None) == (change.action == "create"), f"{change} finds {before}"
        assert before is None or before.version < change.revision, f"{change} is older than {before}"
        if change.action == "delete":
            del state[name]
        else:
            state[name] = Held(change.topic, change.value, change.revision)
    return state


def stored(db: DbApi) -> State:
    """All objects that the database has now."""
    with db.snapshot() as snapshot:
        return state_of(snapshot)


def follow(db: DbApi, is_done: Callable[[list[Change]], bool], *, after: int = 0, limit: int = 100) -> list[Change]:
    """Read the feed as a controller does, with `wait` and `changes`, until ``is_done`` of the changes is True.

    Raises AssertionError when revisions do not rise, and WaitTimeout after `WAIT_S`.
    """
    seen: list[Change] = []
    deadline = time.monotonic() + WAIT_S
    while not is_done(seen):
        if time.monotonic() > deadline:
            raise WaitTimeout(f"after {WAIT_S} s the feed had {len(seen)} changes, but not the expected ones")
        db.wait(after, timeout_s=1.0)
        for change in db.changes(after, limit=limit):
            assert change.revision > after, f"revision {change.revision} after {after}"
            after = change.revision
            seen.append(change)
    return seen
