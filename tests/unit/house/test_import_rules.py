"""Dependencies point one way.  This reads every import in the tree and enforces it.

The rules are the three tables below.  A new top-level package must get a row, and a violation names the file, the line,
the import and the rule it breaks.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pytest

from tests.helpers import source_trees
from tests.helpers.paths import ROOT


class Layer(NamedTuple):
    """What of this project a package may import.  ``denied`` wins over ``allowed``."""

    allowed: tuple[str, ...]
    denied: tuple[str, ...] = ("heliograph_drivers",)


_CONTRACTS = ("pubsub_api", "nb_api", "durable_log")
_SERVICES = ("publisher_service", "durability_service", "shared_subscriptions", "spark_pipeline")
_PROGRAMS = ("heliograph", "bench", "examples")

# A driver sees the contract it implements, what the contract is made of and what is made for drivers, not the sessions
# built on it.
_DRIVER_CONTRACTS = (
    "heliograph_drivers", "pubsub_api.driver", "pubsub_api.errors", "pubsub_api.config", "pubsub_api.core",
    "pubsub_api.driver_kit", "pubsub_api.runtime",
    "nb_api.core", "nb_api.db_api", "nb_api.errors", "nb_api.config", "nb_api.revisions", "nb_api.writing.outbox_age",
    "durable_log.core", "durable_log.log_api", "durable_log.storage", "durable_log.config", "durable_log.errors",
)  # fmt: skip
# The memory driver injects faults, in the words that the simulator uses for them.
_MEMORY_DRIVER = Layer((*_DRIVER_CONTRACTS, "pubsub_api.testing.faults"), denied=())
# What every core may use beside its own folder and the errors of its package.
_PURE = ("pubsub_api.core", "pubsub_api.errors", "pubsub_api.runtime.backoff", "pubsub_api.runtime.sockets.messages")

LAYERS = {
    "pubsub_api.core": Layer(("pubsub_api.core",)),
    **{
        f"{package}.core": Layer((*_PURE, f"{package}.core", f"{package}.errors"))
        for package in ("nb_api", "durable_log", "publisher_service", "spark_pipeline")
    },
    "nb_api.controller.core": Layer((*_PURE, "nb_api.core", "nb_api.errors", "nb_api.controller.core")),
    "heliograph_drivers.pubsub.longpoll.core": Layer((*_PURE, "heliograph_drivers.pubsub.longpoll.core"), denied=()),
    "pubsub_api.testing": Layer(("pubsub_api",)),
    # Shipped for tests and simulations; the bus itself must not need it.
    "pubsub_api": Layer(("pubsub_api",), denied=("heliograph_drivers", "pubsub_api.testing")),
    "nb_api": Layer(("pubsub_api", "nb_api")),
    "durable_log": Layer(("pubsub_api", "durable_log")),
    "publisher_service": Layer((*_CONTRACTS, "publisher_service")),
    "durability_service.core": Layer(("pubsub_api.core", "durability_service.core")),
    "durability_service": Layer((*_CONTRACTS, "durability_service")),
    "shared_subscriptions.core": Layer(("pubsub_api.core", "shared_subscriptions.core")),
    "shared_subscriptions": Layer((*_CONTRACTS, "shared_subscriptions")),
    # Jobs of a group follow what was declared for it.
    "spark_pipeline": Layer((*_CONTRACTS, "shared_subscriptions", "spark_pipeline")),
    "heliograph": Layer((*_CONTRACTS, *_SERVICES, *_PROGRAMS)),
    "bench": Layer((*_CONTRACTS, *_SERVICES, *_PROGRAMS)),
    "examples": Layer((*_CONTRACTS, *_SERVICES, *_PROGRAMS)),
    "tests": Layer((*_CONTRACTS, *_SERVICES, *_PROGRAMS, "tests")),
    # The cores of the long-poll protocol do no I/O, and are tested without the driver around them.
    "tests.unit.drivers.etcd": Layer((*_CONTRACTS, "tests", "heliograph_drivers.db"), denied=()),
    "tests.unit.drivers.longpoll": Layer((*_CONTRACTS, "tests", "heliograph_drivers.pubsub.longpoll"), denied=()),
    "tests.unit.drivers.postgres": Layer((*_CONTRACTS, "tests", "heliograph_drivers.db.postgres"), denied=()),
    "tests.unit.drivers.sqlite": Layer((*_CONTRACTS, "tests", "heliograph_drivers.sqlite_common"), denied=()),
    "tests.unit.drivers.zenoh": Layer((*_CONTRACTS, "tests", "heliograph_drivers.pubsub.zenoh"), denied=()),
    "tests.unit.drivers.zmq": Layer((*_CONTRACTS, "tests", "heliograph_drivers.pubsub.zmq"), denied=()),
    # How a driver looks at its files cannot be seen from outside: the test stops its clock.
    "tests.functional.durable_log.test_log_waiting": Layer(
        (*_CONTRACTS, "tests", "heliograph_drivers.log.sqlite"), denied=()
    ),
    "heliograph_drivers.pubsub.memory": _MEMORY_DRIVER,
    "heliograph_drivers.pubsub.memory.bus": _MEMORY_DRIVER,
    "heliograph_drivers": Layer(_DRIVER_CONTRACTS, denied=()),
}

# Programs that compare Heliograph with the raw library, or test it against one, use that library as a stranger would.
_STRANGERS = ("bench", "tests")

FOREIGN = {
    **dict.fromkeys(("zmq", "zenoh", "redis", "hiredis"), ("heliograph_drivers", *_STRANGERS)),
    **dict.fromkeys(("grpc", "psycopg", "psycopg2", "etcd3", "etcd3gw"), ("heliograph_drivers", *_STRANGERS)),
    "pyspark": ("spark_pipeline", *_STRANGERS),
    "rich": ("heliograph", *_STRANGERS),  # for the command, and never in a library
}

# A folder called ``core`` does no I/O and reads no clock: time, identity and chance are given to it.
_IMPURE = """
    _thread asyncio concurrent datetime glob logging multiprocessing os pathlib queue random secrets select selectors
    shutil signal socket socketserver sched ssl subprocess sys tempfile threading time urllib.request uuid
    warnings
"""
_PURITY = {
    **dict.fromkeys(_IMPURE.split(), "the core does no I/O and reads no clock"),
    **dict.fromkeys(("oslo_config", "stevedore", "msgpack", "rich"), "the core needs msgspec and nothing else"),
}

_DYNAMIC = ("__import__", "import_module")


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def imports(tree: ast.Module, module: str, *, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """``(line, full dotted name)`` of everything that a source file imports, wherever in the file it does so."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _resolve(node, package)
            yield from ((node.lineno, f"{base}.{alias.name}" if base else alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant) and _is_import(node):
            yield node.lineno, str(node.args[0].value)


def _is_import(call: ast.Call) -> bool:
    function = call.func
    return (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)) in _DYNAMIC


def _resolve(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    levels = package.split(".")
    base = levels[: len(levels) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def violations(module: str, found: Iterable[tuple[int, str]]) -> list[str]:
    """One sentence per import of the module that breaks a rule; ``found`` is what it imports."""
    layer = max((name for name in LAYERS if is_within(module, name)), key=len, default=None)
    if layer is None:
        return [f"{module}: the package {module.partition('.')[0]!r} has no layer; give it a row in LAYERS"]
    return [f"{module}:{line}: import of {name}: {why}" for line, name in found if (why := _objection(layer, name))]


def _objection(layer: str, name: str) -> str | None:
    top = name.partition(".")[0]
    rule = LAYERS[layer]
    if top == "drivers":
        return "the folder drivers is imported as heliograph_drivers, so that programs may have one of that name"
    if top in {own.partition(".")[0] for own in LAYERS}:
        if any(is_within(name, denied) for denied in rule.denied):
            return f"{layer} must not import {top if top == 'heliograph_drivers' else name} by name"
        if not any(is_within(name, allowed) for allowed in rule.allowed):
            return f"{layer} may import only {', '.join(rule.allowed)}"
        return None
    if top in FOREIGN and layer.partition(".")[0] not in FOREIGN[top]:
        return f"{top} belongs under {FOREIGN[top][0]}/"
    return _impurity(name) if layer.endswith(".core") else None


def _impurity(name: str) -> str | None:
    return next((why for impure, why in _PURITY.items() if is_within(name, impure)), None)


def reached(start: str, sources: Mapping[str, pathlib.Path]) -> set[str]:
    """The modules of this project that a module imports, directly or through others; itself too."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += filter(None, (_module_of(name, sources) for _, name in _imports_of(module, sources[module])))
    return found


@functools.cache
def _imports_of(module: str, path: pathlib.Path) -> Sequence[tuple[int, str]]:
    return list(imports(source_trees.parse([path])[path], module, is_package=path.name == "__init__.py"))


def _module_of(name: str, modules: Iterable[str]) -> str | None:
    """The module that an imported name is, or is found in; None when it is none of this project."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def _source_files() -> list[pathlib.Path]:
    """Relative to the root of the checkout."""
    packages = {path.parent for path in ROOT.glob("*/__init__.py")} - {ROOT / "drivers"}  # it has another name
    named = {ROOT / name.partition(".")[0] for name in LAYERS}
    return sorted(path.relative_to(ROOT) for package in packages | named for path in package.rglob("*.py"))


def _module_name(path: pathlib.Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("top", sorted({path.parts[0] for path in _source_files()}))
def test_imports_follow_the_arrows(top: str) -> None:
    broken = [
        sentence
        for path in _source_files()
        if path.parts[0] == top
        for sentence in violations(_module_name(path), _imports_of(_module_name(path), path))
    ]
    assert not broken, "\n" + "\n".join(broken)


def test_every_core_does_no_io_also_through_what_it_imports() -> None:
    sources = {_module_name(path): path for path in _source_files()}
    cores = [module for module in sources if "core" in module.split(".") and not is_within(module, "tests")]
    assert {module.rpartition(".core")[0] + ".core" for module in cores if module.endswith(".core")} <= LAYERS.keys()
    broken = {
        f"{module}:{line}: import of {name}: {why}"
        for core in cores
        for module in reached(core, sources)
        for line, name in _imports_of(module, sources[module])
        if (why := _impurity(name))
    }
    assert not broken, "\n" + "\n".join(sorted(broken))


def test_what_is_reached_goes_through_other_modules(tmp_path: pathlib.Path) -> None:
    texts = {
        "a.core.one": "from a.two import x",
        "a.two": "from . import three",
        "a.three": "import time",
        "a.four": "",
    }
    sources = {module: tmp_path / module for module in texts}
    for module, text in texts.items():
        sources[module].write_text(text)
    assert reached("a.core.one", sources) == {"a.core.one", "a.two", "a.three"}


@pytest.mark.parametrize(
    ("module", "statement", "reason"),
    [
        ("pubsub_api.core.gaps", "import time", "no I/O and reads no clock"),
        ("pubsub_api.core.gaps", "from random import Random", "no I/O and reads no clock"),
        ("pubsub_api.core.gaps", "def later():\n    import socket", "no I/O and reads no clock"),
        ("pubsub_api.core.gaps", "import oslo_config.cfg", "msgspec and nothing else"),
        ("pubsub_api.core.gaps", "from pubsub_api import driver", "may import only pubsub_api.core"),
        ("pubsub_api.core.gaps", "from .. import session", "may import only pubsub_api.core"),
        ("pubsub_api.session", "import zmq.utils.monitor", "belongs under heliograph_drivers/"),
        ("pubsub_api.session", "import heliograph_drivers.pubsub.zmq", "must not import heliograph_drivers by name"),
        ("pubsub_api.session", "from drivers import pubsub", "imported as heliograph_drivers"),
        (
            "pubsub_api.session",
            "importlib.import_module('heliograph_drivers.pubsub.zmq')",
            "must not import heliograph_drivers by name",
        ),
        ("pubsub_api.session", "from .testing import simulator", "must not import pubsub_api.testing"),
        ("pubsub_api.session", "import nb_api", "may import only pubsub_api"),
        ("nb_api.cache", "import durable_log", "may import only pubsub_api, nb_api"),
        ("nb_api.core.copy.cache", "from nb_api.db_api import Change", "may import only"),
        ("publisher_service.core.messages", "from urllib import request", "no I/O and reads no clock"),
        ("heliograph_drivers.pubsub.longpoll.core.wire", "import time", "no I/O and reads no clock"),
        ("durability_service.merge", "import shared_subscriptions", "may import only"),
        ("durability_service.merge", "import pyspark.sql", "belongs under spark_pipeline/"),
        (
            "heliograph_drivers.pubsub.zmq",
            "from pubsub_api.session import Session",
            "may import only heliograph_drivers",
        ),
        ("heliograph_drivers.pubsub.zmq", "import pubsub_api", "may import only heliograph_drivers"),
        ("heliograph_drivers.pubsub.zmq", "import pubsub_api.testing.faults", "may import only heliograph_drivers"),
        ("heliograph_drivers.pubsub.zmq", "import pyspark", "belongs under spark_pipeline/"),
        ("heliograph.main", "import redis", "belongs under heliograph_drivers/"),
        ("heliograph.main", "import tests.helpers.waiting", "may import only"),
        ("newcomer.module", "import json", "has no layer"),
    ],
)
def test_the_checker_catches(module: str, statement: str, reason: str) -> None:
    [sentence] = violations_of(statement, module)
    assert reason in sentence
    assert sentence.startswith(module)


def violations_of(source: str, module: str, *, is_package: bool = False) -> list[str]:
    return violations(module, imports(ast.parse(source), module, is_package=is_package))


def test_the_checker_accepts_what_is_right() -> None:
    source = """
        import enum, msgspec
        from pubsub_api.core import frame
        from .errors import FrameError
        from . import topics
    """
    assert violations_of(textwrap.dedent(source), "pubsub_api.core.gaps") == []
    assert violations_of("from .frame import pack", "pubsub_api.core", is_package=True) == []
    assert violations_of("import zmq\nfrom pubsub_api.driver import PubSubApi", "heliograph_drivers.pubsub.zmq") == []
    assert violations_of("import redis, pubsub_api.testing.conformance", "tests.functional.test_redis") == []


def test_the_checker_resolves_relative_imports() -> None:
    assert list(imports(ast.parse("from ..b import c\nfrom . import d"), "top.a.module")) == [
        (1, "top.b.c"),
        (2, "top.a.d"),
    ]
    assert list(imports(ast.parse("from .b import c"), "top.a", is_package=True)) == [(1, "top.a.b.c")]
