"""The process that Spark forks Python workers from: PySpark's own, with the imports of the workers already done.

Otherwise each worker would import PySpark, the configuration library and the log for itself.  What is imported here is
there after the fork.  Not so Arrow: its import starts a thread, and a process with threads is not to be forked.

``python -m spark_pipeline.sessions.daemon`` is for Spark to call, see `spark_pipeline.sessions.session.spark_options`.
"""

from __future__ import annotations

import importlib

from pyspark.daemon import manager

from durable_log.loading import load_log_driver

_MODULES = (
    "pyspark.worker",
    "pyspark.sql.conversion",
    "spark_pipeline.reading.source",
    "spark_pipeline.reading.group_source",
)


def preload() -> None:
    """Import what workers need and what starts no thread."""
    for name in _MODULES:
        importlib.import_module(name)
    load_log_driver("sqlite")  # the embedded one, whose library comes with Python


if __name__ == "__main__":
    preload()
    manager()
