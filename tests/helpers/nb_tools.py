"""What tests of the database side share: an `NbApi` on a private SQLite file, with or without a bus."""

from __future__ import annotations

import pathlib
import uuid
from typing import Any

from oslo_config import cfg

from nb_api import NbApi, config, notify_config
from nb_api.coordination import lease_config
from pubsub_api.testing.fast_conf import fast_conf

FAST_DB = {"outbox_age": 0.5, "retry_interval_max": 0.5}
PATIENT_DB = {"outbox_age": 60.0}
"""A writer that is slow is not taken for one that is dead: each change is published once."""
lease_config.REFRESHES_PER_LEASE = 600
"""In this process: a publisher is found soon, and none is taken for dead where a machine stands still."""
FAST_CACHE = {"verify_interval": 0.2, "snapshot_jitter": 0.05}


def sqlite_url(directory: pathlib.Path, name: str = "objects") -> str:
    return f"sqlite://{directory}/{name}.db"


def nb_conf(
    bus: str | None = None,
    *,
    db: dict[str, Any] | None = None,
    cache: dict[str, Any] | None = None,
    **pubsub: Any,
) -> cfg.ConfigOpts:
    """Short times.  ``bus`` is the URL of a driver, None for the database's own feed."""
    conf = fast_conf(bus or f"memory://{uuid.uuid4().hex}", enable_df_pub_sub=bus is not None, **pubsub)
    conf.register_opts(config.OPTIONS, group=config.GROUP)
    notify_config.register(conf)
    lease_config.read_discovery(conf)
    for name, value in {**FAST_DB, **(db or {})}.items():
        conf.set_override(name, value, group=config.GROUP)
    for name, value in {**FAST_CACHE, **(cache or {})}.items():
        conf.set_override(name, value, group=notify_config.CACHE_GROUP)
    return conf


def open_nb(url: str, bus: str | None = None, **settings: Any) -> NbApi:
    return NbApi.open(conf=nb_conf(bus, **settings), url=url)


def memory_bus() -> str:
    """The URL of a bus in memory that nobody else uses."""
    return f"memory://{uuid.uuid4().hex}"
