"""The login at etcd: a token, got for user and password, until the server does not know it any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nb_api.errors import DbUnavailable
from pubsub_api.runtime import forking


class Login:
    """The token of one process.  Every method may be called from any thread.

    A token is forgotten by the server after some minutes without use, and when it is restarted.  etcd takes its time to
    check a password, so one thread asks and the others wait for it.
    """

    def __init__(self) -> None:
        self._token = ""
        self._lock = threading.Lock()
        forking.register(self)

    def token(self, refused: str, authenticate: Callable[[], str], deadline: float) -> str:
        """The present one, or a new one when that is ``refused``.

        Raises DbUnavailable when others have not got one in time, and what ``authenticate`` raises.
        """
        token = self._token
        if token and token != refused:
            return token
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise DbUnavailable("another thread waits for the login at etcd, which takes too long")
        try:
            if not self._token or self._token == refused:
                self._token = authenticate()
            return self._token
        finally:
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """The token is as good in the child; the lock may have been held."""
        self._lock = threading.Lock()
