"""The life of one name-space in one service, as a table.

=============  ==========================================================================================
phase          meaning
=============  ==========================================================================================
DISCOVER       listening for peers; what is on disk is loaded, nothing is concluded
ELECT          taking part in the choice of a master, waiting for it to be agreed and to have a complete set
DORMANT        as ELECT, but no reader wants the data yet (LAZY), or it is never kept (ON_REQUEST)
INJECT         chosen, and no peer is complete: what is on disk becomes the set, once it is marked durably
FETCH          aligning with a master that is complete
COMPLETE       holding the set, serving it, following the master
MERGING        joining with another side of a split; incomplete until that is done
TERMINATING    saying good-bye
=============  ==========================================================================================

Only `TRANSITIONS` changes a phase.  What is not in it cannot happen.
"""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    DISCOVER = "DISCOVER"
    ELECT = "ELECT"
    DORMANT = "DORMANT"
    INJECT = "INJECT"
    FETCH = "FETCH"
    COMPLETE = "COMPLETE"
    MERGING = "MERGING"
    TERMINATING = "TERMINATING"


class LifecycleCause(enum.Enum):
    DISCOVERED = "discovery is over"
    DISCOVERED_LAZY = "discovery is over and no reader wants the data"
    INTEREST = "a reader wants the data"
    CHOSEN = "agreed as master, and no service is complete"
    MASTER_COMPLETE = "the agreed master has a complete set"
    SOURCE_LOST = "the source of an alignment left or changed"
    STORED = "the set is whole and durable"
    SPLIT = "another side of a split must be joined"
    STOPPED = "the service ends"


TRANSITIONS: dict[tuple[Phase, LifecycleCause], Phase] = {
    (Phase.DISCOVER, LifecycleCause.DISCOVERED): Phase.ELECT,
    (Phase.DISCOVER, LifecycleCause.DISCOVERED_LAZY): Phase.DORMANT,
    (Phase.DORMANT, LifecycleCause.INTEREST): Phase.ELECT,
    (Phase.ELECT, LifecycleCause.CHOSEN): Phase.INJECT,
    (Phase.ELECT, LifecycleCause.MASTER_COMPLETE): Phase.FETCH,
    (Phase.INJECT, LifecycleCause.STORED): Phase.COMPLETE,
    (Phase.FETCH, LifecycleCause.STORED): Phase.COMPLETE,
    (Phase.FETCH, LifecycleCause.SOURCE_LOST): Phase.ELECT,
    (Phase.COMPLETE, LifecycleCause.SPLIT): Phase.MERGING,
    (Phase.MERGING, LifecycleCause.STORED): Phase.COMPLETE,
    (Phase.MERGING, LifecycleCause.SOURCE_LOST): Phase.COMPLETE,
    **{(phase, LifecycleCause.STOPPED): Phase.TERMINATING for phase in Phase if phase is not Phase.TERMINATING},
}

ALIGNED = frozenset({Phase.COMPLETE, Phase.MERGING})
"""The set was complete once and has been maintained since."""


def after(phase: Phase, cause: LifecycleCause) -> Phase:
    """The next phase.  A transition that is not in the table is a bug, and says so."""
    try:
        return TRANSITIONS[phase, cause]
    except KeyError:
        raise AssertionError(f"no transition from {phase.name} when {cause.value}") from None
