"""A Spark home in which Python processes start with a third of the work.

Spark puts the archive ``python/lib/pyspark.zip`` of its home first on the path of every Python process it starts, and
Python compiles what it imports from an archive anew in each: a second of work for the process of every streaming query.
On a busy machine that second becomes the ten after which Spark gives a process up ("Python worker failed to connect
back").  The installed package has the same modules, compiled.  So on one machine Spark runs from a directory of links
that has its programs and jars, and no archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import uuid
from collections.abc import Iterator

from spark_pipeline.paths import cache_directory

_LINKS = ("bin", "jars")
_VARIABLE = "SPARK_HOME"


@contextlib.contextmanager
def without_archive(master: str) -> Iterator[None]:
    """While this lasts, a Spark that is started for a local master has such a home.  A user who has said where Spark
    is keeps that, and a cluster's workers need the archive where they have no package."""
    home = None if _VARIABLE in os.environ or not master.startswith("local") else linked_home(_package())
    if home is None:
        yield
        return
    os.environ[_VARIABLE] = str(home)
    try:
        yield
    finally:
        del os.environ[_VARIABLE]  # programs that this one starts shall find Spark as they would without it


def linked_home(package: pathlib.Path) -> pathlib.Path | None:
    """A home of links to this one.  Made when it is missing; None when there is no place for it, and then everything
    works as well, only slower."""
    cache = cache_directory()
    if cache is None:
        return None
    home = cache / f"spark-{hashlib.sha256(os.fsencode(package)).hexdigest()[:16]}"
    home.mkdir(mode=0o700, exist_ok=True)
    for name in _LINKS:
        _link(home / name, package / name)
    return home


def _link(link: pathlib.Path, target: pathlib.Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    new = link.with_name(f"{link.name}-{uuid.uuid4().hex}")
    new.symlink_to(target)
    os.replace(new, link)  # another process may be making it too


def _package() -> pathlib.Path:
    import pyspark  # noqa: PLC0415

    return pathlib.Path(pyspark.__file__).parent
