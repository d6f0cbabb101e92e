"""Whether this process may begin a run of a key, and under which fencing token: always, elected, or by shards."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

from nb_api.controller.core.keys import Key
from nb_api.coordination.election import Election
from nb_api.coordination.key_shards import KeyShards
from nb_api.core.key_shards import ShardRun
from pubsub_api.errors import UsageError
from pubsub_api.runtime.shared_threads import run_soon


def _yes() -> bool:
    return True


def _no() -> bool:
    return False


@dataclasses.dataclass(frozen=True)
class RunPermit:
    """What a run has begun with."""

    token: int | None = None
    is_held: Callable[[], bool] = _yes
    """No other process can have begun a run of the key since, nor can it before the lease is over."""
    asks_to_stop: Callable[[], bool] = _no
    shard_run: ShardRun | None = None


_ALWAYS = RunPermit()


@dataclasses.dataclass(frozen=True)
class RunMoves:
    """Keys that came to this process, or went."""

    is_gained: Callable[[Key], bool] | None = None
    """Another process may have worked on the key until now, so that it has to run once."""
    is_lost: Callable[[Key], bool] | None = None
    """Another process has to work on the key from now on."""


class RunPermits:
    """For a controller that is alone: everything may run.

    `begin` and what it gives may be used by any thread, `take_moves` by the one that follows the copy.
    """

    is_selective = False
    """Keys that are not `is_wanted` are not kept: they are queued when this process gets them."""

    @property
    def is_active(self) -> bool:
        """Some run may begin."""
        return True

    def begin(self, key: Key) -> RunPermit | None:  # noqa: ARG002
        """None when no run of this key may begin now.  The caller calls `end` after it."""
        return _ALWAYS

    def end(self, permit: RunPermit) -> bool:
        """Whether no other process could begin a run of the key since `begin`."""
        return permit.is_held()

    def is_foreign(self, key: Key) -> bool:  # noqa: ARG002
        """No run of this key will begin before it was gained."""
        return False

    def is_wanted(self, key: Key) -> bool:  # noqa: ARG002
        """This process has to work on the key, as far as `take_moves` has told."""
        return True

    def take_moves(self) -> RunMoves | None:
        """What has moved since the last call; None when nothing has."""
        return None

    @property
    def has_moves(self) -> bool:
        """`take_moves` has something to tell."""
        return False

    def give_up(self) -> str:
        """No run begins any more, because the controller has ended by itself: let others have what was shared.

        Waits a few seconds at most; what runs goes on.  Returns what is given up, empty for nothing.
        """
        return ""


class ElectedPermits(RunPermits):
    """Runs begin while this process leads; what is wanted is kept until then."""

    def __init__(self, election: Election) -> None:
        self._election = election
        self._token: int | None = None
        """Of the last time that this process led."""
        self._lock = threading.Lock()
        self._runs = 0
        self._is_given_up = False

    @property
    def is_active(self) -> bool:
        return self._election.is_leader()

    def begin(self, key: Key) -> RunPermit | None:  # noqa: ARG002
        token, election = self._election.token(), self._election
        if token is None:
            return None
        with self._lock:
            self._runs += 1
        return RunPermit(token, lambda: election.token() == token, lambda: election.token() != token)

    def end(self, permit: RunPermit) -> bool:
        was_held = permit.is_held()
        with self._lock:
            self._runs -= 1
        self._resign()
        return was_held

    def give_up(self) -> str:
        with self._lock:
            self._is_given_up = True
        self._resign()  # when the last run has ended
        return "its leadership"

    def _resign(self) -> None:
        with self._lock:
            if self._runs or not self._is_given_up:
                return
        run_soon(self._election.close)  # it waits for the database

    def take_moves(self) -> RunMoves | None:
        token, before = self._election.token(), self._token
        if token is None or token == before:
            return None
        self._token = token
        return None if before is None else RunMoves(is_gained=lambda _key: True)


class ShardPermits(RunPermits):
    """Runs begin for keys of the shards that this process holds."""

    is_selective = True

    def __init__(self, shards: KeyShards) -> None:
        self._shards = shards
        self._moves = 0
        self._tokens: dict[int, int] = {}
        """As of the last `take_moves`."""

    @property
    def is_active(self) -> bool:
        return self._shards.is_lasting()

    def begin(self, key: Key) -> RunPermit | None:
        shards = self._shards
        run = shards.begin_run(*key)
        if run is None:
            return None
        return RunPermit(run.token, lambda: shards.is_held(run), lambda: shards.is_ending(run), run)

    def end(self, permit: RunPermit) -> bool:
        assert permit.shard_run is not None
        return self._shards.end_run(permit.shard_run)

    def is_foreign(self, key: Key) -> bool:
        return self._shards.is_foreign(*key)

    def is_wanted(self, key: Key) -> bool:
        return self._shards.shard_of(*key) in self._tokens

    def take_moves(self) -> RunMoves | None:
        if not self.has_moves:
            return None
        self._moves = self._shards.moves  # first: what moves after it is told by the next call
        before, self._tokens = self._tokens, self._shards.tokens()
        held, shard_of = self._tokens, self._shards.shard_of
        gained = {shard for shard, token in held.items() if before.get(shard) != token}
        return RunMoves(
            (lambda key: shard_of(*key) in gained) if gained else None, lambda key: shard_of(*key) not in held
        )

    @property
    def has_moves(self) -> bool:
        return self._shards.moves != self._moves

    def give_up(self) -> str:
        self._shards.close()  # each shard when its last run has ended
        return "its shards"


def permits_of(election: Election | None, shards: KeyShards | None) -> RunPermits:
    """Raises UsageError."""
    if election is not None and shards is not None:
        raise UsageError("one process works on all keys (election), or several on some each (shards), not both")
    if election is not None:
        return ElectedPermits(election)
    return RunPermits() if shards is None else ShardPermits(shards)
