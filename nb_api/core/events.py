"""From a change in the database to the events that tell it, and back.

An object that moves to another topic concerns two kinds of followers.  Those of the new topic get the ``set``; those of
the old one get a ``delete`` of the same version that says where the object went.
"""

from __future__ import annotations

from nb_api.core.changes import Change
from pubsub_api.core.events import Event

_MOVED_TO = "moved_to"


def event_of(change: Change) -> Event:
    """What is published for a change to the subscribers of the topic that the object has now."""
    return Event(
        topic=change.topic,
        table=change.table,
        key=change.key,
        action=change.action,
        value=change.value,
        version=change.revision,
        headers=change.headers,
    )


def events_of(change: Change) -> list[Event]:
    """What is published for a change: one event, or two when the object moved."""
    events = [event_of(change)]
    if change.left_topic is not None:
        events.append(
            Event(
                topic=change.left_topic,
                table=change.table,
                key=change.key,
                action="delete",
                value={_MOVED_TO: change.topic},
                version=change.revision,
                headers=change.headers,
            )
        )
    return events


def moved_to(event: Event) -> str | None:
    """The topic that an object moved to, when the event is a delete that tells of a move."""
    goal = event.value.get(_MOVED_TO) if isinstance(event.value, dict) else None
    return goal if isinstance(goal, str) else None
