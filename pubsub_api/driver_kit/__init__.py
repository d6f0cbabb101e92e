"""All that a driver of the bus needs besides the contract: what every driver would otherwise write again.

`DriverPublisher` and `DriverSubscriber` remember what is registered, refuse wrong use and count.  `Inbox` and
`ReplaceableThread` are for the threads that call the receiver.  The other names are for both ends.
"""

from pubsub_api.driver_kit.counting import Tally, UseCounts, total
from pubsub_api.driver_kit.ends import DriverPublisher, DriverSubscriber, ProcessGuard
from pubsub_api.driver_kit.guarding import GuardedHandler, GuardedReceiver
from pubsub_api.driver_kit.inbox import Inbox
from pubsub_api.driver_kit.responders import ResponderCount
from pubsub_api.driver_kit.threads import ReplaceableThread, join_thread
from pubsub_api.runtime.backoff import Backoff
from pubsub_api.runtime.shared_threads import THREADS
from pubsub_api.runtime.sockets.waking import Waker
from pubsub_api.runtime.threads import start_thread

__all__ = [
    "THREADS",
    "Backoff",
    "DriverPublisher",
    "DriverSubscriber",
    "GuardedHandler",
    "GuardedReceiver",
    "Inbox",
    "ProcessGuard",
    "ReplaceableThread",
    "ResponderCount",
    "Tally",
    "UseCounts",
    "Waker",
    "join_thread",
    "start_thread",
    "total",
]
