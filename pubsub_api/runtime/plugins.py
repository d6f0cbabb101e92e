"""Finding and importing drivers of every kind by the names of their entry points.

An entry point may state the pip extra that brings its library,
``zenoh = heliograph_drivers.pubsub.zenoh:ZenohPubSub [zenoh]``; the error for a missing library says what to install.
Every failure is raised as one typed error with its cause, and none is only logged.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

from oslo_config import cfg
from stevedore.named import NamedExtensionManager

from pubsub_api.errors import DriverDependencyMissing, DriverError, DriverNotFound, InvalidConfig, UsageError

Base = TypeVar("Base")

_OWN_PACKAGES = frozenset({"pubsub_api", "nb_api", "durable_log"})


class Plugins(Generic[Base]):
    """The driver classes of one namespace of entry points.  ``what`` names their kind in errors."""

    def __init__(self, namespace: str, base: type[Base], what: str) -> None:
        self._namespace = namespace
        self._base = base
        self._what = what

    def entry_points(self) -> Sequence[importlib.metadata.EntryPoint]:
        """All that are installed.  Imports nothing."""
        manager: NamedExtensionManager[Any] = NamedExtensionManager(self._namespace, names=[])
        return manager.list_entry_points()

    def find(self, name: str) -> Sequence[importlib.metadata.EntryPoint]:
        """Those that are installed under ``name``, at least one.  Imports nothing.  Raises DriverNotFound with the
        names that exist."""
        entries = self.entry_points()
        found = [entry for entry in entries if entry.name == name]
        if not found:
            names = ", ".join(sorted({entry.name for entry in entries})) or "none"
            raise DriverNotFound(f"no {self._what} is installed under the name {name!r}; available: {names}")
        return found

    def load(self, name: str) -> type[Base]:
        """The class installed under ``name``.  Imports its module and the library behind it.

        Raises DriverNotFound with the names that exist, DriverDependencyMissing with the pip extra when the library is
        missing or cannot be imported, and DriverError when the driver itself is broken.
        """
        found = self.find(name)
        if len(found) > 1:
            targets = " and ".join(sorted(entry.value for entry in found))
            raise DriverError(
                f"several {self._what}s are installed under the name {name!r}: {targets}; uninstall all but one"
            )
        return self._import_class(found[0])

    def _import_class(self, entry: importlib.metadata.EntryPoint) -> type[Base]:
        try:
            driver_class = entry.load()
        except Exception as error:
            raise self._load_error(entry, error) from error
        if not (isinstance(driver_class, type) and issubclass(driver_class, self._base)):
            raise DriverError(f"{self._what} {entry.name!r}: {entry.value} is not a subclass of {self._base.__name__}")
        return driver_class

    def _load_error(self, entry: importlib.metadata.EntryPoint, error: BaseException) -> DriverError:
        library = _foreign_library(entry, error)
        if library is None:
            return DriverError(f"{self._what} {entry.name!r} is broken: {entry.value}: {type(error).__name__}: {error}")
        problem = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({error})"
        return DriverDependencyMissing(
            f"{self._what} {entry.name!r} needs the Python library {library!r}, which {problem}: "
            f"{self._remedy(entry, library)}"
        )

    def _remedy(self, entry: importlib.metadata.EntryPoint, library: str) -> str:
        if not entry.extras:
            return f"install {library!r}"
        # stevedore's cache drops the distribution an entry point came from, so it is looked up again.
        known = importlib.metadata.entry_points(group=self._namespace, name=entry.name)
        package = next((found.dist.name for found in known if found.dist is not None), "heliograph")
        return f"pip install '{package}[{','.join(entry.extras)}]'"


def _foreign_library(entry: importlib.metadata.EntryPoint, error: BaseException) -> str | None:
    """The library whose import failed, or None when the failure lies in the driver or in Heliograph itself."""
    if not isinstance(error, ImportError) or not error.name:
        return None
    library = error.name.partition(".")[0]
    return None if library == entry.module.partition(".")[0] or library in _OWN_PACKAGES else library


def register_options(conf: cfg.ConfigOpts, driver_class: type[Any], options: Mapping[str, Sequence[cfg.Opt]]) -> None:
    """Register the options that a driver adds: group -> options.  Raises DriverError when it redefines an option."""
    for group, added in options.items():
        try:
            conf.register_opts(added, group=group)
        except cfg.DuplicateOptError as error:
            raise DriverError(f"{driver_class.__name__} redefines an option of group [{group}]: {error}") from error


def split_url(url: str, *, what: str, example: str, has_hosts: bool = False) -> SplitResult:
    """The parts of a URL whose scheme names a driver.

    ``has_hosts``: the URL may list several hosts, separated by commas; then ``port`` of the result cannot be used, and
    the driver reads the hosts itself.  Raises InvalidConfig, without showing a password, and UsageError for a URL that
    is no string.
    """
    if not isinstance(url, str):
        raise UsageError(f"a URL is a string, as {example!r} is, not {type(url).__name__}")
    shown = without_password(url.partition("?")[0])  # options may hold secrets
    try:
        parts = urlsplit(url)
        for place in parts.netloc.rpartition("@")[2].split(",") if has_hosts else [parts.netloc]:
            _ = urlsplit(f"//{place}").port  # computed on access: an impossible port is refused here, for every driver
    except ValueError as error:
        if "@" in shown:  # the error would show what urlsplit takes for a port, which may be a part of the password
            raise InvalidConfig(
                f"URL {shown!r} cannot be understood: in a user and a password write / as %2F, @ as %40, : as %3A"
            ) from None
        raise InvalidConfig(f"URL {shown!r} cannot be understood: {error}") from error
    if not parts.scheme or "://" not in url:
        raise InvalidConfig(f"URL {shown!r} does not name a {what}: write driver://..., as in {example}")
    return parts


def without_password(url: str) -> str:
    """The URL with *** instead of all before the last @: that hides a password with unencoded characters, too."""
    return re.sub(r"(?<!/)//(?!/)[^?]*@", "//***@", url)
