"""The ``[spark]`` option group: where jobs run and how much they may use."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg, types

from pubsub_api.runtime.options import advanced

GROUP = "spark"

OPTIONS: Sequence[cfg.Opt] = (
    cfg.StrOpt("master", default="local[*]",
               help="Where jobs run: local[*], local[N], spark://host:port, yarn, k8s://...; --master overrides it."),
    cfg.Opt("driver_memory", type=types.String(regex=r"^[1-9]\d*[mg]$"), default="2g",
            help="Memory of the driver's JVM, and with local[...] of the whole job: 512m, 4g."),
    *advanced(
        cfg.Opt("options", type=types.Dict(value_type=types.String()), default={},
                help="More options for Spark itself, key:value, separated by commas: spark.executor.memory:4g, "
                     "spark.sql.shuffle.partitions:64. Executors on other hosts need spark.driver.host and "
                     "spark.driver.bindAddress."),
    ),
)  # fmt: skip

BIND_ADDRESS = "127.0.0.1"
"""Address of the driver that executors connect to, unless ``options`` has spark.driver.host and
spark.driver.bindAddress: closed to the network until told otherwise."""
EXECUTOR_MEMORY = "2g"
"""Memory of each executor's JVM on a cluster, unless ``options`` has spark.executor.memory."""
PARTITION_EVENTS_MAX = 1_000_000
"""Most events that one task reads from a shard, unless the read says otherwise.  A longer range of it is split."""
BATCH_EVENTS_MAX = 1_000_000
"""Most events that one micro-batch takes from the log, unless the read says otherwise."""


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(GROUP, OPTIONS)]
