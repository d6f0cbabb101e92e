"""Answers of a Redis server: bytes in, values out, by hiredis.  Does no I/O."""

from __future__ import annotations

from typing import Final

import hiredis

BULK_BYTES_MAX = 512 * 1024 * 1024
"""The server's own limit (proto-max-bulk-len), and so the largest frame."""

INCOMPLETE: Final = object()
"""What a reader returns when the next answer has not arrived in full."""


class ServerError(Exception):
    """An error that the server answered, as a value.  It is never raised."""


class ProtocolError(Exception):
    """The peer does not speak the protocol of Redis."""


def new_reader() -> hiredis.Reader:
    """A reader for one connection."""
    return hiredis.Reader(protocolError=ProtocolError, replyError=ServerError, notEnoughData=INCOMPLETE)
