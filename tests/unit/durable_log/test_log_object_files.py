"""What is kept of objects that were fetched: bounded, and readable as long as it is read."""

from __future__ import annotations

import os
import pathlib
import tempfile

import pytest

from durable_log.segments.objects import _CachedFile, _FileCache, _path


def cached(content: bytes) -> _CachedFile:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        return _CachedFile(os.dup(file.fileno()), len(content))


def test_the_last_used_ones_stay_within_the_bound() -> None:
    cache = _FileCache(10)
    for name in "abc":
        cache.add(name, cached(name.encode() * 4))
        assert cache.get("a") is not None or name == "c"
    assert [cache.get(name) is not None for name in "abc"] == [True, False, True]
    cache.forget("a")
    assert cache.get("a") is None
    cache.add("large", cached(b"x" * 100))
    assert cache.get("large") is not None, "one may be larger than the bound"
    assert cache.get("c") is None


def test_what_is_read_may_leave_the_cache() -> None:
    cache = _FileCache(10)
    cache.add("a", cached(b"content"))
    reading = cache.get("a")
    assert reading is not None
    cache.forget("a")
    path = _path(reading.descriptor)
    assert pathlib.Path(path).read_bytes() == pathlib.Path(path).read_bytes() == b"content"
    del reading
    with pytest.raises(OSError, match=path):
        pathlib.Path(path).read_bytes()
