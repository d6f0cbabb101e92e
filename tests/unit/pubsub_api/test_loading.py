"""Finding, importing and configuring drivers: each way it can go wrong is one typed error that says what to do.

The drivers of a third party are real distributions, written to a temporary directory on the import path.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import logging
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import stevedore._cache
import stevedore.extension

from pubsub_api import config, errors, loading
from tests.helpers.paths import ROOT

SHIPPED = ["longpoll", "memory", "redis", "rediss", "zenoh", "zmq", "zmq_pubsub_driver", "zmq_pubsub_multiproc_driver"]

# Implements the contract just far enough to be constructed and configured.
CARRIER = """
from oslo_config import cfg
from pubsub_api.driver import PubSubApi
from pubsub_api.errors import InvalidConfig

class Carrier(PubSubApi):
    options = {"carrier": [cfg.IntOpt("pigeons", default=3, min=1, max=9, help="Pigeons.")]}
    capabilities = None

    @classmethod
    def configure_from_url(cls, conf, url):
        if url.hostname == "nowhere":
            raise InvalidConfig("nowhere is no place for a pigeon")
        if url.port is not None:
            conf.set_override("pigeons", url.port, group="carrier")

    def listen_addresses(self): return []
    def get_publisher(self): raise NotImplementedError
    def get_subscriber(self): raise NotImplementedError
"""

Install = Callable[..., str]

_numbers = itertools.count()


@pytest.fixture
def install(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A function that installs a distribution with one driver module and returns the module's name."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    # stevedore remembers entry points in the process and on disk; both memories must not outlive or precede the test.
    fresh = stevedore._cache.Cache(str(tmp_path / "cache"))
    monkeypatch.setattr(stevedore.extension.ExtensionManager, "ENTRY_POINT_CACHE", {})
    monkeypatch.setattr(stevedore._cache, "get_group_all", fresh.get_group_all)

    def write(source: str, *, name: str = "carrier", target: str = "Carrier", package: str = "pigeon-post") -> str:
        module = f"carrier_{next(_numbers)}"
        (site / f"{module}.py").write_text(textwrap.dedent(source))
        info = site / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{loading.NAMESPACE}]\n{name} = {module}:{target}\n")
        return module

    return write


def test_every_shipped_name_is_installed() -> None:
    assert set(SHIPPED) <= set(loading.available_drivers())


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_driver_loads(name: str) -> None:
    assert loading.load_driver(name).__name__.endswith("PubSub")


def test_the_names_of_the_dragonflow_specification_are_aliases() -> None:
    assert loading.load_driver("zmq_pubsub_driver") is loading.load_driver("zmq")


def test_an_unknown_name_is_answered_with_the_names_that_exist(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(errors.DriverNotFound) as caught:
        loading.load_driver("smoke-signals")
    assert "'smoke-signals'" in str(caught.value)
    assert "longpoll, memory, redis, rediss, zenoh, zmq," in str(caught.value)
    assert not caplog.records


def test_a_third_party_driver_loads(install: Install) -> None:
    module = install(CARRIER)
    assert loading.load_driver("carrier").__module__ == module


def test_a_missing_library_names_the_extra_and_the_package_that_has_it(
    install: Install, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, logger="stevedore")
    install("import no_such_library.wings", target="Carrier [wings]")
    with pytest.raises(errors.DriverDependencyMissing) as caught:
        loading.load_driver("carrier")
    assert "'no_such_library', which is not installed" in str(caught.value)
    assert "pip install 'pigeon-post[wings]'" in str(caught.value)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []
    assert capfd.readouterr() == ("", "")


def test_a_missing_library_without_an_extra_is_named(install: Install) -> None:
    install("import no_such_library")
    with pytest.raises(errors.DriverDependencyMissing, match="install 'no_such_library'"):
        loading.load_driver("carrier")


def test_a_library_that_is_too_old_is_a_missing_library(install: Install) -> None:
    install("from json import does_not_exist_yet", target="Carrier [wings]")
    with pytest.raises(errors.DriverDependencyMissing, match=r"'json', which cannot be imported .*does_not_exist_yet"):
        loading.load_driver("carrier")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import pubsub_api.no_such_module", "ModuleNotFoundError"),
        ("from pubsub_api.errors import NoSuchError", "ImportError"),
        ("raise ImportError('gave up')", "ImportError: gave up"),
        ("raise RuntimeError('broken wing')", "RuntimeError: broken wing"),
        ("nothing = here", "NameError"),
        ("Carrier = = 1", "SyntaxError"),
        ("unrelated = 1", "AttributeError"),
        ("class Carrier: pass", "is not a subclass of PubSubApi"),
        ("Carrier = 7", "is not a subclass of PubSubApi"),
    ],
)
def test_a_broken_driver_is_not_a_missing_library(install: Install, source: str, reason: str) -> None:
    module = install(source, target="Carrier [wings]")
    with pytest.raises(errors.DriverError, match=reason) as caught:
        loading.load_driver("carrier")
    assert type(caught.value) is errors.DriverError
    assert module in str(caught.value)


def test_two_drivers_of_one_name_are_refused(install: Install) -> None:
    modules = [install(CARRIER), install(CARRIER, package="other-post")]
    with pytest.raises(errors.DriverError, match="several drivers") as caught:
        loading.load_driver("carrier")
    assert all(module in str(caught.value) for module in modules)


def test_available_drivers_tells_the_usable_from_the_others(install: Install) -> None:
    module = install(CARRIER)
    install("import no_such_library", name="lame", package="lame-post")
    drivers = loading.available_drivers()
    assert list(drivers) == sorted(drivers)
    assert drivers["carrier"].usable
    assert drivers["carrier"].driver_class is loading.load_driver("carrier")
    assert drivers["carrier"].target == f"{module}:Carrier"
    assert not drivers["lame"].usable
    assert drivers["lame"].driver_class is None
    assert isinstance(drivers["lame"].problem, errors.DriverDependencyMissing)


@pytest.mark.parametrize(
    ("name", "library"), [("zmq", "zmq"), ("zenoh", "zenoh"), ("redis", "redis"), ("longpoll", "grpc")]
)
def test_a_shipped_driver_names_its_extra(name: str, library: str) -> None:
    script = f"""
        import sys
        sys.modules[{library!r}] = None    # what Python looks at first: the library cannot be imported
        from pubsub_api import errors, loading
        try:
            loading.load_driver({name!r})
        except errors.DriverDependencyMissing as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert f"pip install 'heliograph[{name}]'" in done.stdout
    assert done.stderr == ""


def test_every_extra_that_an_entry_point_names_exists() -> None:
    extras = set(importlib.metadata.metadata("heliograph").get_all("Provides-Extra") or ())
    named = {extra for entry in importlib.metadata.entry_points(group=loading.NAMESPACE) for extra in entry.extras}
    assert named
    assert named <= extras


def test_build_driver_reads_the_drivers_own_group(install: Install, tmp_path: pathlib.Path) -> None:
    install(CARRIER)
    file = tmp_path / "heliograph.conf"
    file.write_text("[pubsub]\npub_sub_driver = carrier\n[carrier]\npigeons = 7\n")
    driver = loading.build_driver(config.new_conf([file]))
    assert type(driver).__name__ == "Carrier"
    assert driver.conf.carrier.pigeons == 7


def test_build_driver_can_be_told_another_name(install: Install) -> None:
    install(CARRIER)
    assert type(loading.build_driver(config.new_conf(), "carrier")).__name__ == "Carrier"


def test_build_driver_twice_on_one_conf(install: Install) -> None:
    install(CARRIER)
    conf = config.new_conf()
    assert loading.build_driver(conf, "carrier") is not loading.build_driver(conf, "carrier")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[carrier]\npigeons = 10\n", r"\[carrier\] pigeons"),
        ("[carrier]\npigeons = many\n", r"\[carrier\] pigeons"),
        ("[pubsub]\nhmac_key = short\n", "hmac_key"),
        ("[pubsub]\ntls_ca_file = ca.pem\n", r"tls_ca_file is set, but carrier makes no use of it"),
        ("[pubsub]\ntls_client_auth = true\n", r"tls_client_auth is set, but carrier makes no use of it"),
    ],
)
def test_build_driver_refuses_values_that_cannot_work(
    install: Install, tmp_path: pathlib.Path, text: str, reason: str
) -> None:
    install(CARRIER)
    file = tmp_path / "heliograph.conf"
    file.write_text(text)
    with pytest.raises(errors.InvalidConfig, match=reason):
        loading.build_driver(config.new_conf([file]), "carrier")


def test_a_driver_that_redefines_an_option_is_refused(install: Install) -> None:
    install(CARRIER.replace('"carrier": [cfg.IntOpt("pigeons"', '"pubsub": [cfg.IntOpt("history"'))
    with pytest.raises(errors.DriverError, match="redefines an option"):
        loading.build_driver(config.new_conf(), "carrier")


def test_a_url_selects_and_configures_the_driver(install: Install) -> None:
    install(CARRIER)
    conf = loading.conf_from_url("carrier://loft:5")
    assert conf.pubsub.pub_sub_driver == "carrier"
    assert conf.carrier.pigeons == 5
    assert type(loading.build_driver(conf)).__name__ == "Carrier"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "does not name a driver"),
        ("127.0.0.1:8866", "does not name a driver"),
        ("localhost:8866", "does not name a driver"),
        ("//localhost:8866", "does not name a driver"),
        ("zmq_pubsub_driver://localhost", "does not name a driver"),
        ("carrier://loft:99999", "cannot be understood"),
        ("carrier://loft:port", "cannot be understood"),
        ("carrier://[loft", "cannot be understood"),
        ("carrier://loft:10", "cannot be used"),
        ("carrier://nowhere", "no place for a pigeon"),
    ],
)
def test_a_url_that_cannot_work_is_refused(install: Install, url: str, reason: str) -> None:
    install(CARRIER)
    with pytest.raises(errors.InvalidConfig, match=reason):
        loading.conf_from_url(url)


def test_a_url_with_an_unknown_scheme_is_answered_with_the_names_that_exist() -> None:
    with pytest.raises(errors.DriverNotFound, match="memory"):
        loading.conf_from_url("http://localhost")


@pytest.mark.parametrize("url", ["carrier://jo:secret@loft:99999", "carrier://jo:secret@loft:10"])
def test_an_error_does_not_repeat_the_password_of_a_url(install: Install, url: str) -> None:
    install(CARRIER)
    with pytest.raises(errors.InvalidConfig) as caught:
        loading.conf_from_url(url)
    assert "secret" not in str(caught.value)
