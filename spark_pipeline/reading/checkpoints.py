"""What Spark keeps in the checkpoint of a streaming query about a batch, as far as it tells two batches apart."""

from __future__ import annotations

import hashlib
import pathlib
import urllib.parse

_OFFSETS = "offsets"


def batch_mark(checkpoint: str, number: int) -> str:
    """A mark of one batch: the same each time the batch is run, and another one for a batch of the same number that
    was planned apart from it, which only a copy of the checkpoint can bring about.

    Before a batch runs, Spark writes where it ends in every source, and the time, into a file, and takes it from there
    when it runs the batch again.  Empty when there is no such file here, because the checkpoint is in an object store,
    or the query itself does not name it.
    """
    try:
        planned = pathlib.Path(_path(checkpoint), _OFFSETS, str(number)).read_bytes()
    except OSError:
        return ""
    return hashlib.blake2b(planned, digest_size=16).hexdigest()


def _path(checkpoint: str) -> str:
    url = urllib.parse.urlsplit(checkpoint)
    return urllib.parse.unquote(url.path) if url.scheme == "file" else checkpoint
