"""Fixtures of the conformance suite, and what the test class of a driver may override."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar
from urllib.parse import urlsplit

import pytest
from oslo_config import cfg

from pubsub_api import loading
from pubsub_api.driver import PubSubApi
from pubsub_api.testing.conformance.stage import Stage
from pubsub_api.testing.ports import free_port


class ConformanceBase:
    """Configuration of a run.  Most drivers need only ``url``; port 0 is a free port."""

    url: ClassVar[str]
    multi_process: ClassVar[bool] = True
    """False: the driver connects no processes, and the tests that need several are skipped."""
    link_rounds: ClassVar[int] = 20
    """How often a link is made and used as soon as it is up, to find a Connected that is reported too early."""

    @pytest.fixture
    def driver_url(self) -> str:
        """The URL under test.  Override this fixture when a server or a directory must be made first.

        Processes that the suite starts are configured by this URL only.
        """
        return self.url

    @pytest.fixture
    def second_url(self, driver_url: str) -> str:
        """The URL of a second publisher.  Override it when the URL names a fixed address to bind."""
        return driver_url

    def make_conf(self, url: str) -> cfg.ConfigOpts:
        """A ``conf`` for the driver that the URL names.  Override it to set more options."""
        return loading.conf_from_url(url)

    def make_driver(self, conf: cfg.ConfigOpts) -> PubSubApi:
        """The driver object under test.  Override it to wrap the driver."""
        return loading.build_driver(conf)

    def url_at(self, url: str, address: str) -> str:
        """The URL with which a publisher binds ``address``, which another one got from ``url`` by an ephemeral port."""
        parts = urlsplit(url)
        if parts.port != 0:
            return url
        port = re.findall(r":(\d+)", address)[-1]
        return parts._replace(netloc=f"{parts.netloc[:-2]}:{port}").geturl()

    def lasting_url(self, url: str) -> str:
        """The URL with a reserved port instead of port 0: no other process can bind it while the publisher restarts."""
        parts = urlsplit(url)
        if parts.port != 0:
            return url
        return parts._replace(netloc=f"{parts.netloc[:-2]}:{free_port()}").geturl()

    def send_foreign(self, address: str, topic: str, payload: bytes) -> None:  # noqa: ARG002 - for subclasses
        """Send bytes that are no frame, as another program on the transport would.  Override it to run that test."""
        pytest.skip("the suite cannot send foreign messages on this transport")

    @pytest.fixture
    def conf(self, driver_url: str) -> cfg.ConfigOpts:
        return self.make_conf(driver_url)

    @pytest.fixture
    def driver(self, conf: cfg.ConfigOpts) -> PubSubApi:
        return self.make_driver(conf)

    @pytest.fixture
    def stage(self, driver: PubSubApi, second_url: str) -> Iterator[Stage]:
        stage = Stage(driver, lambda url: self.make_driver(self.make_conf(url)), second_url)
        try:
            yield stage
        finally:
            stage.close()
