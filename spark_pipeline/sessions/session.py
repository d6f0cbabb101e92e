"""A Spark session that works where Heliograph works: Java found, workers on this Python, everything on loopback.

Starting one takes seconds and hundreds of megabytes, so nothing here happens on import, and nothing but the jobs of
this package asks for it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from oslo_config import cfg

from pubsub_api.config import check_group, new_conf
from spark_pipeline.config import BIND_ADDRESS, EXECUTOR_MEMORY, GROUP, OPTIONS
from spark_pipeline.errors import PipelineError, SparkMissing
from spark_pipeline.sessions import java_logging
from spark_pipeline.sessions.java import find_java
from spark_pipeline.sessions.spark_home import without_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK_VERSION_MIN = (4, 2)

_DAEMON = "spark_pipeline.sessions.daemon"
_LEVEL = "spark.log.level"
_LOCAL_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def open_session(conf: cfg.ConfigOpts | None = None, *, app_name: str, master: str | None = None) -> SparkSession:
    """A session for jobs.  Stop it when done.

    Under ``spark-submit`` its settings win over those of ``conf``.  Where a session is active already, it is that one,
    as it is, and only learns the format ``heliograph``.  Sets JAVA_HOME, PYSPARK_PYTHON and SPARK_LOCAL_IP of this
    process, which Spark's launcher reads.  Raises SparkMissing, JavaMissing, InvalidConfig.
    """
    check_pyspark()
    conf = new_conf() if conf is None else conf
    conf.register_opts(OPTIONS, group=GROUP)
    check_group(conf, GROUP, OPTIONS)
    _prepare_environment(conf[GROUP].options.get("spark.driver.bindAddress", BIND_ADDRESS))
    from pyspark.sql import SparkSession  # noqa: PLC0415  # a heavy import that only jobs pay for

    from spark_pipeline.reading.source import HeliographDataSource  # noqa: PLC0415

    session = SparkSession.getActiveSession()
    if session is None:
        master = master or conf[GROUP].master
        submitted = _submitted()
        options = session_options(conf, app_name=app_name, master=master, submitted=submitted)
        builder = SparkSession.builder
        for key, value in options.items():
            builder = builder.config(key, value)
        with without_archive("" if submitted else master):
            session = builder.getOrCreate()
    session.dataSource.register(HeliographDataSource)
    return session


def _submitted() -> dict[str, str]:
    """What ``spark-submit`` was told, empty when it has not started this process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415

    SparkContext._ensure_initialized()  # else a SparkConf does not ask Java, and is empty
    return dict(SparkConf().getAll())


def session_options(
    conf: cfg.ConfigOpts, *, app_name: str, master: str, submitted: Mapping[str, str]
) -> dict[str, str]:
    """What a session is started with: what `spark_options` says, and nothing that ``spark-submit`` was told."""
    wanted = spark_options(conf, submitted.get("spark.master", master))
    options = {"spark.app.name": app_name, "spark.master": master} | wanted
    # Without --name, it calls the application by its program.
    by_itself = {key for key in ("spark.app.name",) if submitted.get(key) == os.path.basename(sys.argv[0])}
    if not submitted:
        options = _quiet(options)
    return {key: value for key, value in options.items() if key not in submitted or key in by_itself}


def _quiet(options: dict[str, str]) -> dict[str, str]:
    java_options = java_logging.quietly(options.get(java_logging.OPTION, ""))
    if java_options is None:
        return options
    # Spark tells that it sets its own level, so it is not asked to.
    return {key: value for key, value in options.items() if key != _LEVEL} | {java_logging.OPTION: java_options}


def check_pyspark() -> str:
    """The version of PySpark.  Raises SparkMissing."""
    try:
        import pyspark  # noqa: PLC0415
    except ImportError as error:
        raise SparkMissing(f"the pipeline needs PySpark ({error}): pip install 'heliograph[spark]'") from error
    version: str = pyspark.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < PYSPARK_VERSION_MIN:
        wanted = ".".join(map(str, PYSPARK_VERSION_MIN))
        raise SparkMissing(f"PySpark {version} is too old, {wanted} is needed: pip install -U 'heliograph[spark]'")
    return version


@contextlib.contextmanager
def translated_errors(job: str) -> Iterator[None]:
    """Whatever Spark raises becomes a PipelineError with the one line that says what it was."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except Py4JJavaError as error:
        reason = str(error.java_exception.getMessage() or error.java_exception)
        raise PipelineError(f"Spark could not finish {job}: {decisive_line(reason)}") from error
    except PySparkException as error:
        raise PipelineError(f"Spark could not finish {job}: {decisive_line(str(error))}") from error


def decisive_line(message: str) -> str:
    """What to show of an error of Spark, which may hold the traces of several processes: what our own code raised in a
    worker, or else the first line."""
    ours = re.findall(r"^(?:pubsub_api|nb_api|durable_log|spark_pipeline)[\w.]*\.(\w+: .+)$", message, re.MULTILINE)
    return str(ours[-1]) if ours else message.splitlines()[0]


def spark_options(conf: cfg.ConfigOpts, master: str) -> dict[str, str]:
    """What a session is configured with, before the user's own options of ``[spark] options``."""
    spark = conf[GROUP]
    options = {
        "spark.driver.memory": spark.driver_memory,
        "spark.executor.memory": EXECUTOR_MEMORY,
        "spark.driver.host": BIND_ADDRESS,
        "spark.driver.bindAddress": BIND_ADDRESS,
        "spark.sql.shuffle.partitions": str(max(4, 2 * local_cores(master))),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        _LEVEL: "ERROR",
    }
    if master.startswith("local"):
        # The other one starts some twenty processes, chmod and readlink, for every micro-batch, where Hadoop has no
        # native library: half the time that a small batch takes.
        options["spark.sql.streaming.checkpointFileManagerClass"] = _LOCAL_CHECKPOINTS
        # Only here, where it is certain that workers can import it.
        options["spark.python.daemon.module"] = _DAEMON
    options.update(spark.options)
    return options


def local_cores(master: str) -> int:
    """How many cores ``local[...]`` means here; 2 for a cluster, whose size only the cluster knows."""
    if not master.startswith("local"):
        return 2
    _, _, asked = master.rstrip("]").partition("[")
    asked = asked.partition(",")[0]
    return (os.cpu_count() or 1) if asked == "*" else int(asked or 1)


def _prepare_environment(address: str) -> None:
    # Without this the workers run whatever python3 is first on the PATH, which may lack every library.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", address)
    os.environ["JAVA_HOME"] = str(find_java().home)
