"""What every test shares."""

from __future__ import annotations

import atexit
import gc
import os
import signal
from typing import Any

import hypothesis
import pytest

from pubsub_api.testing.child import ChildProcess
from tests.helpers import compiling, distribution, hang_limit, made_once
from tests.helpers.warm_processes import WarmProcess

# The longpoll driver sets this, too late when some other test has imported gRPC before: a forked child could crash.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# Where the tests run in the background, SIGINT may be ignored, and programs that they start inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long the product waits for another process before it gives up, where a test does not say: on a loaded machine any
# process may stand still for seconds.  Programs that tests start inherit it.
_PATIENCE = {
    "HELIOGRAPH_CONFORMANCE_WAIT_S": "60",
    "OS_DB__OPERATION_TIMEOUT": "60", "OS_LOG__OPERATION_TIMEOUT": "60",
    "OS_DURABILITY__NO_SERVICE_TIME": "30", "OS_PUBSUB__LINK_TIMEOUT": "120",
}  # fmt: skip
for _name, _value in _PATIENCE.items():
    os.environ.setdefault(_name, _value)

ChildProcess.start_process = WarmProcess

# A loaded machine must not fail a property test: how long one example takes says nothing about correctness.  And two
# runs try the same examples, so that a change fails because of what it changes; others are tried by
# ``--hypothesis-profile exploring``.
_exploring = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("exploring", _exploring)
hypothesis.settings.register_profile("heliograph", _exploring, derandomize=True)
hypothesis.settings.load_profile("heliograph")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--measure", action="store_true", help="write tests/helpers/seconds.json, for a run of all tests")


def pytest_configure(config: pytest.Config) -> None:
    """No test hangs for ever.  And while tests are collected, nothing is garbage: looking for it takes a fifth of the
    time, in every process."""
    hang_limit.install(config)
    made_once.begin(config)
    if config.getoption("measure") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(distribution.Measurement(), "measurement")
    gc.disable()


def pytest_sessionstart(session: pytest.Session) -> None:
    """A fresh checkout is compiled by all processes together."""
    compiling.import_own_files(session.config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes, what takes longest begins first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: distribution.place_of(item.nodeid))


def pytest_collection_finish() -> None:
    """Thousands of tests stay in memory.  A full garbage collection would look at them all and take a second, and the
    long-poll driver makes one whenever its last end closes."""
    gc.enable()
    gc.freeze()
    atexit.register(_unfreeze, os.getpid())


def _unfreeze(pid: int) -> None:
    """Let libraries find at the end of the process that nothing of theirs is left."""
    if os.getpid() == pid:  # what a fork inherited from the driver must stay as it is
        gc.unfreeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> distribution.UnitScheduling | None:
    """``--dist loadfile``, with files that belong together.  Marks for ``loadgroup`` would be simpler, but with pytest
    9.2 they have no effect in xdist 3.8, and every process starts every server."""
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # the number of tests says nothing about their duration
    return distribution.UnitScheduling(config, log)
