"""The memory driver and the fault-injecting wrapper, against the suite that defines a correct driver.

The drivers that need a foreign library have a file each beside this one.
"""

from __future__ import annotations

from oslo_config import cfg

from pubsub_api.driver import PubSubApi
from pubsub_api.testing.conformance import DriverConformance
from pubsub_api.testing.faults import Faults
from pubsub_api.testing.faulty import FaultyPubSub


class TestMemory(DriverConformance):
    url = "memory://conformance"
    multi_process = False


class TestFaultyWithoutFaults(DriverConformance):
    """The wrapper that injects faults changes nothing as long as there are none."""

    url = "zmq://127.0.0.1:0"

    def make_driver(self, conf: cfg.ConfigOpts) -> PubSubApi:
        return FaultyPubSub(super().make_driver(conf), Faults())


class TestFaultyWithLatency(DriverConformance):
    """A slow line is no reason to be wrong."""

    url = "memory://latency"
    multi_process = False

    def make_driver(self, conf: cfg.ConfigOpts) -> PubSubApi:
        latency = Faults(delay=1, delay_s_min=0.002, delay_s_max=0.002)
        return FaultyPubSub(super().make_driver(conf), latency)
