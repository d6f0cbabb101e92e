"""Options of writers and followers: the rest of ``[db]``, about publishing, and the group ``[local_cache]``."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg

from nb_api import config
from pubsub_api.runtime.options import DAY_S, advanced, count, seconds, text

CACHE_GROUP = "local_cache"

NOTIFY_OPTIONS: Sequence[cfg.Opt] = (
    *advanced(
        count("changes_kept", 1_000_000, 1, 10_000_000_000,
              "Changes that the feed keeps at least. A controller that missed more reads a snapshot."),
        seconds("outbox_age", 5.0, 0.1, DAY_S,
                "A change that was not confirmed as published for this long is published by the sweeper: its writer "
                "has died. It looks five times as often, once a second at least."),
        seconds("retry_interval_max", 30.0, 0.01, 3600.0,
                "Longest pause before a resync that failed, or a database that was away when a publisher service "
                "started, is tried again. The first is a tenth of it, 0.5 seconds at most; each failure doubles it."),
    ),
)  # fmt: skip

CACHE_OPTIONS: Sequence[cfg.Opt] = (
    text("resync_source", "db",
         "Where a full resync reads the objects: db, the database; or the name of an entry point "
         "heliograph.resync_source: snapshot, files in snapshot_directory; durability, the durability services on the "
         "bus. Changes after what the source proves, and everything when it cannot, are read from the database."),
    *advanced(
        text("snapshot_directory", "",
             "For resync_source = snapshot: a snapshot, or a directory with snapshots, of which the newest is taken."),
        count("snapshot_slots", 16, 0, 10_000,
              "How many caches read a full snapshot of one database at the same time; others wait for a slot, for five "
              "minutes at most. 0: no limit."),
        seconds("verify_interval", 60.0, 0.0, DAY_S,
                "How often the database's revision is asked for, one cheap read, to notice that it went back, as one "
                "does that is restored from a backup. 0: never."),
        seconds("resync_interval", 0.0, 0.0, DAY_S,
                "How often a delta resync is made without a reason, to find what was written past the bus. 0: never."),
        seconds("bus_patience", 10.0, 0.0, DAY_S,
                "When a publisher or the broker could not be reached for this long, or frames were refused, the "
                "database is read instead, and again as often until that ends. 0: never."),
        seconds("snapshot_jitter", 5.0, 0.0, 3600.0,
                "A full resync that no caller waits for is delayed by a random part of this. Those of one cache that "
                "are closer together than twice this are deferred and joined."),
    ),
)  # fmt: skip

PUBLISH_QUEUE_MAX = 20_000
"""Committed changes that wait to be published, in one process: some seconds of writing.  When it is full, writers
wait."""
PUBLISH_TIMEOUT_S = 5.0
"""How long publishing may take, and how long the end of a process waits for what is in that queue.  What is not
published then stays in the outbox and is swept."""
CONFIRM_INTERVAL_S = 1.0
"""Published changes are taken out of the outbox this often, all of them together: a transaction that commits meet."""
SWEEP_INTERVAL_S = 1.0
"""How often the sweeper looks into the outbox: one cheap read."""
COMPACT_INTERVAL_S = 300.0
"""How often changes beyond ``changes_kept``, and old deletes, are forgotten: by the elected publisher service where
there is one, else by every process that writes."""
RETRY_INTERVAL_S = 0.5
"""A database that was restarted is back after some times this."""
TOMBSTONES_KEPT_S = DAY_S
"""How long it is remembered that an object was deleted: longer than any writer stands still."""
UPDATE_ATTEMPTS_MAX = 100
"""How often an update is tried when others change the object between reading and writing it."""
SWEEP_BATCH = 500
"""Changes that are published, or swept, in one go: a few milliseconds of the database."""
CHANGES_QUEUE_MAX = 100_000
"""Changes that wait for one consumer: a second of a flood.  When there are more, they are replaced by one Resynced that
says so, and it reads the copy, which is faster by then."""
TOMBSTONES_MAX = 100_000
"""Deletes since the last resync that a cache remembers, to recognise older events, about 100 bytes each.  More lead to
a delta resync."""
DELTA_CHANGES_MAX = 100_000
"""A resync reads at most so many missed changes one by one; when there are more, it reads the objects instead, which is
faster for most databases."""
DELTA_PORTION = 1000
"""Changes that are read at a time."""
SLOT_LEASE_S = 15.0
"""A slot whose holder shows no progress for this long is taken over."""
SLOT_WAIT_MAX_S = 300.0
"""A cache that got no slot for this long reads without one, which is counted: late is worse than together."""
FEED_PATIENCE_S = 5.0
"""A copy that follows the feed and could not read it for this long does not count as complete."""
SOURCE_TIMEOUT_S = 30.0
"""How long durability services may take to answer, and then to give everything; then the database is read."""
SOURCE_REPAIRS_MAX = 1000
"""Objects that the source has not, or not new enough, and that are read from the database one by one.  When there are
more, reading all objects is faster."""


def confirm_interval(conf: cfg.ConfigOpts) -> float:
    """Seconds.  A small part of outbox_age, or what is on its way would be published twice."""
    return min(CONFIRM_INTERVAL_S, float(conf[config.GROUP].outbox_age) / 5)


def sweep_interval(conf: cfg.ConfigOpts) -> float:
    """Seconds between two looks of the sweeper: what is due is late by a fifth at most."""
    return min(SWEEP_INTERVAL_S, float(conf[config.GROUP].outbox_age) / 5)


def retry_interval(conf: cfg.ConfigOpts) -> float:
    """Seconds before what failed is tried again for the first time; later pauses double up to retry_interval_max."""
    return min(RETRY_INTERVAL_S, float(conf[config.GROUP].retry_interval_max) / 10)


def register(conf: cfg.ConfigOpts) -> None:
    """Make the options known to a ``conf``.  Idempotent."""
    conf.register_opts(NOTIFY_OPTIONS, group=config.GROUP)
    conf.register_opts(CACHE_OPTIONS, group=CACHE_GROUP)


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(config.GROUP, NOTIFY_OPTIONS), (CACHE_GROUP, CACHE_OPTIONS)]
