"""Checks of the host: Python, libraries, installed drivers, limits, clock."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import resource
import sys
import time
from typing import NamedTuple

from heliograph.doctor.findings import CheckContext, Finding
from pubsub_api import loading
from pubsub_api.errors import DriverDependencyMissing

PYTHON_MIN = (3, 10)
OPEN_FILES_MIN = 1024
YEAR_MIN, YEAR_MAX = 2025, 2200
DEVELOPER_EXTRAS = frozenset({"all", "test", "bench", "lint", "browser", "release"})

_REQUIREMENT = re.compile(r"^(?P<name>[\w.-]+)(?:\[[^\]]*\])?\s*\(?(?:>=\s*(?P<least>[\d.]+))?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


class Requirement(NamedTuple):
    """A library that this package uses; ``extra`` is empty when it is always needed."""

    name: str
    least: str
    extra: str


def check_python(_context: CheckContext) -> list[Finding]:
    version = platform.python_version()
    if sys.version_info[:2] < PYTHON_MIN:
        return [Finding("python", "failed", f"Python {version} is too old", "use Python 3.10 or newer")]
    return [Finding("python", "ok", f"{platform.python_implementation()} {version} on {platform.system()}")]


def check_libraries(_context: CheckContext) -> list[Finding]:
    """The libraries that are always needed, then those of the extras that a user may choose."""
    try:
        wanted = requirements(importlib.metadata.requires("heliograph") or [])
    except importlib.metadata.PackageNotFoundError:
        detail = "heliograph is not installed, only importable, so no driver can be found"
        return [Finding("libraries", "failed", detail, "pip install heliograph, or in a checkout: ./run demo")]
    return [_check_needed([it for it in wanted if not it.extra]), _check_extras([it for it in wanted if it.extra])]


def requirements(lines: list[str]) -> list[Requirement]:
    """Parse the requirement lines of a package's metadata; it knows the syntax that this package uses."""
    found: list[Requirement] = []
    for line in lines:
        match, extra = _REQUIREMENT.match(line), _EXTRA.search(line)
        if match and not (extra and extra[1] in DEVELOPER_EXTRAS):
            found.append(Requirement(match["name"], match["least"] or "0", extra[1] if extra else ""))
    return found


def _check_needed(wanted: list[Requirement]) -> Finding:
    bad = [it for it in wanted if not _is_met(it)]
    if bad:
        what = ", ".join(f"{it.name} {installed(it.name) or 'is missing'}" for it in bad)
        fix = "pip install " + " ".join(f"'{it.name}>={it.least}'" for it in bad)
        return Finding("libraries", "failed", what, fix)
    return Finding("libraries", "ok", ", ".join(f"{it.name} {installed(it.name)}" for it in wanted))


def _check_extras(wanted: list[Requirement]) -> Finding:
    """A missing extra is fine; one that is installed and too old is a problem."""
    present = [it for it in wanted if installed(it.name)]
    old = [it for it in present if not _is_met(it)]
    absent = sorted({it.extra for it in wanted} - {it.extra for it in present})
    libraries: dict[str, list[str]] = {}
    for it in present:
        libraries.setdefault(it.extra, []).append(f"{it.name} {installed(it.name)}")
    detail = ", ".join(f"{extra} ({', '.join(names)})" for extra, names in libraries.items()) or "none installed"
    if absent:
        detail += f"; not installed: {', '.join(absent)}"
    if old:
        return Finding(
            "extras", "warning", detail, f"pip install --upgrade 'heliograph[{','.join(it.extra for it in old)}]'"
        )
    return Finding("extras", "ok", detail, f"if wanted: pip install 'heliograph[{','.join(absent)}]'" if absent else "")


def installed(name: str) -> str | None:
    """The installed version of a library."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_met(wanted: Requirement) -> bool:
    version = installed(wanted.name)
    return version is not None and _numbers(version) >= _numbers(wanted.least)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def check_drivers(_context: CheckContext) -> list[Finding]:
    """Check that every installed driver can be imported, or lacks only its library."""
    statuses = loading.available_drivers()
    usable = [name for name, status in statuses.items() if status.usable]
    problems = [status.problem for status in statuses.values() if status.problem]
    broken = [str(it) for it in problems if not isinstance(it, DriverDependencyMissing)]
    if not usable:
        return [Finding("drivers", "failed", "no driver can be used", "pip install 'heliograph[zmq]'")]
    if broken:
        return [Finding("drivers", "warning", "; ".join(broken), "reinstall the package that the driver comes from")]
    return [Finding("drivers", "ok", ", ".join(usable))]


def check_open_files(_context: CheckContext) -> list[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES_MIN:
        detail = f"this process may open {soft} files; a publisher needs a few per subscriber"
        highest = "unlimited" if hard == resource.RLIM_INFINITY else hard
        fix = f"ulimit -n {OPEN_FILES_MIN} or more (allowed here: {highest})"
        return [Finding("open files", "warning", detail, fix)]
    return [Finding("open files", "ok", "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} at once")]


def check_clock(_context: CheckContext) -> list[Finding]:
    """Check the wall clock, which gives the timestamps of events, and the monotonic clock, which gives deadlines."""
    year = time.gmtime().tm_year
    if not YEAR_MIN <= year <= YEAR_MAX:
        return [Finding("clock", "failed", f"the clock shows the year {year}", "set the clock, for example with NTP")]
    if not time.get_clock_info("monotonic").monotonic:
        return [Finding("clock", "failed", "there is no monotonic clock", "run on an operating system that has one")]
    return [Finding("clock", "ok", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))]
