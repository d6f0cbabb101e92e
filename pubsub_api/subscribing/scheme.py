"""Subscriptions of another kind: what serves filters that begin with a scheme, as in ``$shared/GROUP/FILTER``.

A scheme is an entry point of the namespace ``heliograph.subscription_scheme`` under the name that follows the ``$``.
The bus knows none of them; it only hands over what it cannot serve itself.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pubsub_api.errors import UsageError
from pubsub_api.runtime.plugins import Plugins

if TYPE_CHECKING:
    from pubsub_api.session import Session
    from pubsub_api.subscribing.dispatching import OnEvent, OnEvents

NAMESPACE = "heliograph.subscription_scheme"


class SchemeSubscriber(Protocol):
    """What a session needs to know of a subscriber that it did not make itself."""

    @property
    def is_closed(self) -> bool: ...

    def statistics(self) -> Any: ...

    def close(self) -> None: ...


class SubscriptionScheme(abc.ABC):
    """Makes subscribers.  The class is loaded by the name of its entry point and made without arguments."""

    @abc.abstractmethod
    def subscriber(
        self,
        session: Session,
        topics: Sequence[str],
        *,
        on_event: OnEvent | None,
        on_events: OnEvents | None,
        auto_ack: bool,
        member: str,
    ) -> SchemeSubscriber:
        """A subscriber with the methods of `pubsub_api.Subscriber`, and perhaps more.  Raises InvalidTopic."""


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
