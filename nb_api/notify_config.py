"""Options of who writes and of who follows: the rest of ``[db]``, about publishing, and the group ``[local_cache]``."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg, types

from nb_api import config

CACHE_GROUP = "local_cache"


def _seconds(name: str, default: float, low: float, high: float, help_text: str) -> cfg.Opt:
    return cfg.Opt(name, type=types.Float(min=low, max=high), default=default, help=f"{help_text} Seconds.")


NOTIFY_OPTIONS: Sequence[cfg.Opt] = (
    cfg.IntOpt("update_attempts_max", default=100, min=1, max=100_000,
               help="How often an update is tried when others change the object between reading and writing it."),
    cfg.IntOpt("publish_queue_max", default=20_000, min=1, max=10_000_000,
               help="Committed changes that wait to be published, in one process. When it is full, writers wait."),
    _seconds("publish_interval", 0.005, 0.0, 10.0,
             "In a flood of commits, pause so long between two batches. A change that comes alone is not delayed."),
    _seconds("publish_timeout", 5.0, 0.01, 3600.0,
             "How long publishing may take, and how long the end of a process waits for what is in that queue. What is "
             "not published then stays in the outbox and is swept."),
    _seconds("confirm_interval", 0.1, 0.001, 60.0,
             "Published changes are taken out of the outbox this often, all of them together."),
    _seconds("outbox_age", 5.0, 0.1, 86_400.0,
             "A change that nobody has confirmed as published for this long is published by the sweeper: its writer "
             "has died. Several times confirm_interval, or what is on its way is published twice."),
    _seconds("sweep_interval", 1.0, 0.01, 3600.0, "How often the sweeper looks into the outbox."),
    cfg.IntOpt("sweep_batch", default=500, min=1, max=10_000,
               help="Changes that are published, or swept, in one go."),
    cfg.BoolOpt("sweep_outbox", default=True,
                help="Processes that write and publish directly sweep the outbox too. Where a publisher service is "
                     "used, it sweeps, whatever is said here."),
    cfg.IntOpt("changes_kept", default=1_000_000, min=1, max=10_000_000_000,
               help="Changes that the feed keeps at least. A controller that missed more reads a snapshot."),
    _seconds("tombstones_kept", 86_400.0, 1.0, 31_536_000.0, "How long it is remembered that an object was deleted."),
    _seconds("compact_interval", 300.0, 0.0, 86_400.0,
             "How often what is beyond these bounds is forgotten: by the elected publisher service where there is one, "
             "else by every process that writes. 0: never."),
)  # fmt: skip

CACHE_OPTIONS: Sequence[cfg.Opt] = (
    cfg.IntOpt("changes_queue_max", default=100_000, min=1, max=100_000_000,
               help="Changes that wait for who iterates over them. When it is full, they are replaced by one Resynced "
                    "that says so."),
    cfg.IntOpt("tombstones_max", default=100_000, min=16, max=100_000_000,
               help="Deletes since the last resync that are remembered, to recognise older events. More lead to a "
                    "delta resync."),
    cfg.IntOpt("delta_changes_max", default=100_000, min=0, max=100_000_000,
               help="A resync reads at most so many missed changes one by one; when there are more, it reads the "
                    "objects instead. 0: it always reads the objects."),
    cfg.IntOpt("delta_portion", default=1000, min=1, max=100_000, help="Changes that are read at a time."),
    _seconds("verify_interval", 60.0, 0.0, 86_400.0,
             "How often the database's revision is asked for, one cheap read, to notice that it went back, as one does "
             "that is restored from a backup. 0: never."),
    _seconds("resync_interval", 0.0, 0.0, 86_400.0,
             "How often a delta resync is made without a reason, to find what was written past the bus. 0: never."),
    _seconds("bus_patience", 10.0, 0.0, 86_400.0,
             "When a publisher or the broker could not be reached for this long, or frames were refused, the database "
             "is read instead, and again as often until that ends. 0: never."),
    _seconds("snapshot_jitter", 5.0, 0.0, 3600.0,
             "A full resync that nobody waits for is delayed by a random part of this."),
    _seconds("snapshot_interval_min", 10.0, 0.0, 3600.0,
             "Full resyncs of one cache closer together than this are deferred and joined."),
    cfg.IntOpt("snapshot_slots", default=16, min=0, max=10_000,
               help="How many caches read a full snapshot of one database at the same time; others wait for a slot. "
                    "0: no limit."),
    _seconds("slot_lease", 15.0, 0.5, 3600.0,
             "A slot whose holder shows no progress for this long is taken over."),
    _seconds("slot_wait_max", 300.0, 0.0, 86_400.0,
             "A cache that got no slot for this long reads without one, which is counted."),
    _seconds("retry_interval", 0.5, 0.01, 3600.0,
             "Pause after a resync that failed; each further failure doubles it."),
    _seconds("retry_interval_max", 30.0, 0.01, 3600.0, "Longest such pause."),
    cfg.StrOpt("resync_source", default="db",
               help="Where a full resync reads the objects: db, the database; or the name of an entry point "
                    "heliograph.resync_source: snapshot, files in snapshot_directory; durability, the durability "
                    "services on the bus. Changes after what the source proves, and everything when it cannot, are "
                    "read from the database."),
    _seconds("source_timeout", 30.0, 0.1, 3600.0,
             "How long durability services may take to answer, and then to give everything."),
    cfg.IntOpt("source_repairs_max", default=1000, min=0, max=1_000_000,
               help="Objects that the source has not, or not new enough, and that are read from the database one by "
                    "one. When there are more, it reads all objects instead."),
    cfg.StrOpt("snapshot_directory", default="",
               help="For resync_source = snapshot: a snapshot, or a directory with snapshots, of which the newest is "
                    "taken."),
)  # fmt: skip


def register(conf: cfg.ConfigOpts) -> None:
    """Make the options known to a ``conf``.  Idempotent."""
    conf.register_opts(NOTIFY_OPTIONS, group=config.GROUP)
    conf.register_opts(CACHE_OPTIONS, group=CACHE_GROUP)


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(config.GROUP, NOTIFY_OPTIONS), (CACHE_GROUP, CACHE_OPTIONS)]
