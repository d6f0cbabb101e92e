"""The settings of a process: which bus, which database, and how many frames the network loses."""

from __future__ import annotations

import dataclasses

from oslo_config import cfg

import pubsub_api
from nb_api import NbApi
from nb_api import config as db_config
from nb_api.loading import open_db
from nb_api.notify_config import CACHE_GROUP, register
from pubsub_api import loading
from pubsub_api.config import GROUP
from pubsub_api.testing.faults import Faults
from pubsub_api.testing.faulty import FaultyPubSub

TABLE = "port"
TENANTS = 5
FILTER = "demo/#"
KEYS_PER_TENANT = 40


@dataclasses.dataclass(frozen=True)
class ProcessSettings:
    """Everything that a process needs, as plain data."""

    kind: str
    """``service``, ``writers`` or ``controller``."""
    number: int
    url: str
    """The bus."""
    address: str
    """Where a controller listens; empty means the address in the URL."""
    database: str
    """URL of the database."""
    socket: str
    """Where writers reach the publisher service."""
    writers: int
    are_threads: bool
    """All parts live in one process, so writers cannot be forked and killed."""
    rate: float
    """Changes per second that all writers make together."""
    drop: float
    """Share of the frames that get lost on the way to a controller, from 0 to 1."""
    idle_s: float
    """Interval of hellos: short, so that the loss of a last event is noticed within the time of a demonstration."""


def read_conf(settings: ProcessSettings) -> cfg.ConfigOpts:
    """The configuration of a process: the defaults, except for addresses and for times that suit a short run."""
    conf = loading.conf_from_url(settings.url)
    conf.register_opts(db_config.OPTIONS, group=db_config.GROUP)
    register(conf)
    for group, name, value in (
        (GROUP, "enable_df_pub_sub", True),
        (GROUP, "publisher_multiproc_socket", settings.socket),
        (GROUP, "max_idle_time", settings.idle_s),
        (GROUP, "missed_hellos_max", 10),  # else the time until the service is back would count as silence
        (db_config.GROUP, "url", settings.database),
        (db_config.GROUP, "outbox_age", 2 * settings.idle_s),
        (CACHE_GROUP, "snapshot_jitter", settings.idle_s),
    ):
        conf.set_override(name, value, group=group)
    return conf


def open_nb(settings: ProcessSettings, faults: Faults | None = None) -> NbApi:
    """Open database and bus; with ``faults`` between the bus and this process.  Raises what `NbApi.open` raises."""
    conf = read_conf(settings)
    if faults is None:
        return NbApi.open(conf=conf)
    session = pubsub_api.open(conf=conf, wrap_driver=lambda driver: FaultyPubSub(driver, faults))
    return NbApi(conf, open_db(None, conf), session)
