"""The Spark session that benchmarks use: two cores of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pubsub_api.config import new_conf
from pubsub_api.errors import HeliographError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2]"
MEMORY = "6g"


def problem() -> str | None:
    """Why Spark cannot be measured here; None when it can."""
    try:
        from spark_pipeline.sessions.session import check_pyspark

        check_pyspark()
    except HeliographError as error:
        return str(error)
    return None


@contextlib.contextmanager
def session() -> Iterator[SparkSession]:
    from spark_pipeline.config import GROUP, OPTIONS
    from spark_pipeline.sessions.session import open_session

    conf = new_conf()
    conf.register_opts(OPTIONS, group=GROUP)
    conf.set_override("driver_memory", MEMORY, group=GROUP)
    opened = open_session(conf, app_name="heliograph-bench", master=MASTER)
    try:
        yield opened
    finally:
        opened.stop()
