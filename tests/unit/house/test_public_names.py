"""What programs see of the packages: types, names, and what objects say of themselves."""

from __future__ import annotations

import configparser
import importlib
import inspect
import pathlib
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import durable_log
import nb_api.coordination.election
import nb_api.coordination.key_shards
import pubsub_api
from nb_api import Controller, LocalCache
from tests.helpers import code_map
from tests.helpers.nb_tools import memory_bus, open_nb, sqlite_url
from tests.helpers.paths import ROOT


def packages() -> list[str]:
    """The top-level packages that are installed."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    names = setup["options.packages.find"]["include"].split()
    return [name.removesuffix("*") for name in names if not name.endswith(".*")]


@pytest.mark.parametrize("package", packages())
def test_every_package_says_that_it_has_types(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.parametrize("name", code_map.PUBLIC_MODULES)
def test_what_is_visible_is_what_is_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    missing = [one for one in module.__all__ if not hasattr(module, one)]
    assert missing == []
    if hasattr(module, "__path__"):  # a package: nothing beside its names and its modules
        seen = {one for one in dir(module) if not one.startswith("_")}
        surplus = {one for one in seen - set(module.__all__) if not isinstance(getattr(module, one), types.ModuleType)}
        assert surplus == set()
    undocumented = [
        one for one in module.__all__ if inspect.isclass(found := getattr(module, one)) and not found.__doc__
    ]
    assert undocumented == []


def test_no_library_imports_what_only_some_programs_need() -> None:
    """The command prints in colours, some programs have coroutines, and what makes a system for tests has no pytest."""
    names = [package for package in packages() if package != "heliograph"]
    names += ["nb_api.api", "nb_api.testing.memory_system", "pubsub_api.session"]
    program = f"import sys, {', '.join(names)}; print({{'rich', 'asyncio', 'pytest'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("set()\n", "")


@pytest.fixture
def things(tmp_path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """One of each kind that a program holds."""
    with ExitStack() as stack:
        found: dict[str, Any] = {}
        found["session"] = session = stack.enter_context(pubsub_api.open(memory_bus()))
        found["publisher"] = session.publisher(name="agent-7")
        found["subscriber"] = session.subscriber(["tenant-7/#"])
        found["nb"] = nb = stack.enter_context(open_nb(sqlite_url(tmp_path)))
        found["db"] = nb.db
        found["transaction"] = nb.transaction()
        found["cache"] = cache = stack.enter_context(LocalCache(nb, tables=["port"]))
        found["subscription"] = cache.subscribe()
        found["index"] = cache.index("by_network", lambda port: port.value)
        found["controller"] = stack.enter_context(Controller(cache, lambda _request: None, name="flows"))
        found["election"] = nb_api.coordination.election.Election(nb.db, "leader", holder="a")
        found["shards"] = nb_api.coordination.key_shards.KeyShards(nb.db, "flows", count=4, holder="a")
        found["log"] = stack.enter_context(durable_log.open(f"sqlite://{tmp_path}/log.db"))
        yield found


def test_everything_says_what_and_where_it_is(things: dict[str, Any], tmp_path: pathlib.Path) -> None:
    said = {name: repr(one) for name, one in things.items()}
    assert [text for text in said.values() if " at 0x" in text] == []
    for name, parts in {
        "session": ("Session", "memory", "open"),
        "publisher": ("Publisher", "agent-7", "memory", "open"),
        "subscriber": ("Subscriber", "memory", "links up", "open"),
        "nb": ("NbApi", f"sqlite://{tmp_path}/objects.db", "without a bus", "open"),
        "db": (f"sqlite://{tmp_path}/objects.db",),
        "transaction": ("Transaction", "0 writes", "open"),
        "cache": ("LocalCache", "open"),
        "subscription": ("Subscription", "all tables", "open"),
        "index": ("Index", "by_network", "port"),
        "controller": ("Controller", "flows", "open"),
        "election": ("Election", "leader", "objects.db"),
        "shards": ("KeyShards", "flows", "objects.db"),
        "log": (f"sqlite://{tmp_path}/log.db",),
    }.items():
        assert [part for part in parts if part not in said[name]] == [], said[name]
    for name in ("subscription", "controller", "cache", "publisher", "subscriber", "session", "nb"):
        things[name].close()
        assert "closed" in repr(things[name])
        assert things[name].is_closed
