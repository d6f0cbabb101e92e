"""From ``[log] segment_directory`` to the store of segments that it names."""

from __future__ import annotations

import pathlib
import re

from durable_log.segments.directory import SegmentDirectory
from durable_log.segments.objects import SCHEMES, ObjectSegments
from durable_log.segments.store import SegmentStore
from pubsub_api.errors import InvalidConfig

_SCHEME = re.compile(rf"\s*(?:([A-Za-z][A-Za-z0-9+.-]*):/|({'|'.join(SCHEMES)})(?::|//))")
"""The second form is that of an address with a typing error, which is no directory either."""


def segment_store(configured: str, default: pathlib.Path | None, *, timeout_s: float) -> SegmentStore:
    """Where segments are.  Raises InvalidConfig when no option says so, or it names nothing that can be used, and
    DriverDependencyMissing."""
    scheme = _SCHEME.match(configured)
    if scheme is not None:
        if (scheme[1] or scheme[2]).lower() not in SCHEMES:
            raise InvalidConfig(
                f"[log] segment_directory = {scheme[1]}://...: segments are kept in a directory, whose "
                f"path has no scheme, or on object storage: {', '.join(f'{one}://bucket/prefix' for one in SCHEMES)}. "
                "Others have no write that fails when the object exists, which sealing depends on: mount them"
            )
        return ObjectSegments(configured, timeout_s=timeout_s)
    if not configured and default is None:
        raise InvalidConfig(
            "this log has no place for sealed segments: set [log] segment_directory to a directory that every host "
            "of the log has mounted, or to object storage, as in s3://bucket/prefix"
        )
    return SegmentDirectory((pathlib.Path(configured) if configured else default or pathlib.Path()).absolute())
