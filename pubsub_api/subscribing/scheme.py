"""Subscriptions of another kind: what serves filters that begin with a scheme, as in ``$shared/GROUP/FILTER``.

A scheme is an entry point of the namespace ``heliograph.subscription_scheme`` under the name that follows the ``$``.
The bus knows none of them; it only hands over what it cannot serve itself.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pubsub_api.core.events import GroupEvent
from pubsub_api.errors import UsageError
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.plugins import Plugins

if TYPE_CHECKING:
    from pubsub_api.session import Session

NAMESPACE = "heliograph.subscription_scheme"


SHARED, QUEUE = "$shared", "$queue"
"""The schemes of groups: in order, and as a queue of work."""

OnGroupEvent = Callable[[GroupEvent], None]
OnGroupEvents = Callable[[Sequence[GroupEvent]], None]


class GroupMember(Closeable):
    """A member of a group of consumers; made by `Session.group`.  Every method may be called from any thread."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[GroupEvent]:
        """Events until it is closed, for a member without a callback.  Raises GroupDestroyed."""

    @abc.abstractmethod
    def get(self, *, timeout_s: float | None = None) -> GroupEvent | None:
        """The next event, None when none came within the time.  One thread at a time; others iterate.

        With ``auto_ack`` the event before is acknowledged by that.  Raises Closed, GroupDestroyed.
        """

    @abc.abstractmethod
    def acknowledge(self, event: GroupEvent) -> bool:
        """The event is done.  False when it was taken away meanwhile: the group may deliver it again.

        Raises NotAGroupEvent.
        """

    @abc.abstractmethod
    def refuse(self, event: GroupEvent, delay_s: float | None = None) -> None:
        """The event could not be handled: deliver it again, after ``delay_s`` or the configured back-off.

        Other events of its topic and key wait for it.  When it has used up its attempts it goes to the dead letters;
        this call then blocks until it is stored there.  Raises NotAGroupEvent.
        """

    @abc.abstractmethod
    def extend(self, event: GroupEvent) -> bool:
        """The event takes longer: ``[groups] handler_timeout`` begins anew, for as often as this is called.

        False when it was taken away already: the group may deliver it again.  Raises NotAGroupEvent.
        """

    @abc.abstractmethod
    def wait_ready(self, *, timeout_s: float) -> None:
        """Return when the leader of the group was found.  Raises WaitTimeout."""

    @abc.abstractmethod
    def statistics(self) -> Any:
        """See `shared_subscriptions.GroupSubscriberStatistics`."""


class SubscriptionScheme(abc.ABC):
    """Makes members of groups.  The class is loaded by the name of its entry point and made without arguments."""

    @abc.abstractmethod
    def subscriber(
        self,
        session: Session,
        topics: Sequence[str],
        *,
        on_event: OnGroupEvent | None,
        on_events: OnGroupEvents | None,
        auto_ack: bool,
        member: str,
    ) -> GroupMember:
        """A member, with the methods of `pubsub_api.Subscriber` too.  Raises InvalidTopic."""


_PLUGINS = Plugins(NAMESPACE, SubscriptionScheme, "subscription scheme")  # type: ignore[type-abstract]


def scheme_of(topics: Sequence[str]) -> SubscriptionScheme | None:
    """What serves these filters; None when the bus itself does.

    Raises UsageError when they are of several kinds, DriverNotFound when nothing is installed for them.
    """
    names = {topic.partition("/")[0] for topic in topics if isinstance(topic, str) and topic.startswith("$")}
    if not names:
        return None
    schemes = {_PLUGINS.load(name[1:]) for name in names}
    if len(schemes) > 1 or not all(topic.startswith("$") for topic in topics):
        raise UsageError("the filters of one subscriber are all of one kind: make a subscriber for each kind")
    return schemes.pop()()
