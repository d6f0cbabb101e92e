"""Errors of the durability service, in the same tree as all others (`pubsub_api.errors`)."""

from __future__ import annotations

from typing import ClassVar

from pubsub_api.core.errors import Fault
from pubsub_api.errors import HeliographError

__all__ = [
    "AdministrationRefused",
    "DurabilityError",
    "NameInUse",
    "NoAligner",
    "NoService",
    "StoreFailed",
    "StoreInUse",
]


class DurabilityError(HeliographError):
    """The durability service could not do what was asked."""

    fault: ClassVar[Fault] = "environment"


class StoreFailed(DurabilityError):
    """The store on disk cannot be opened, read or written.  The service ends, because it must not acknowledge what it
    cannot write."""


class StoreInUse(StoreFailed):
    """Another service uses the store.  Give each service a store of its own."""

    fault = "caller"


class NameInUse(DurabilityError):
    """Another service has the same name and has been running longer.  Give each service its own ``[durability] node``
    and ``store``; then the data of both is joined as that of two sides of a split."""

    fault = "caller"


class NoAligner(DurabilityError):
    """No service may lead a name-space whose data is wanted here, and ``require_aligner`` is set."""

    retriable = True


class AdministrationRefused(DurabilityError):
    """A service deletes history and makes snapshots only for a process that has its ``[durability] admin_key``."""

    fault = "caller"


class NoService(DurabilityError):
    """No durability service answered in time.  It may be down, out of reach, or busy."""

    retriable = True
