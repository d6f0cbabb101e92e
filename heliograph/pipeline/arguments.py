"""Options that the jobs of the pipeline share: where Spark runs, where events come from, where results go."""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from heliograph import options
from heliograph.opening.logs import add_log
from heliograph.output import note_empty
from heliograph.units import Moment
from pubsub_api.errors import UsageError

if TYPE_CHECKING:
    from oslo_config import cfg

    from durable_log import LogApi
    from spark_pipeline.objects import ObjectDirectory
    from spark_pipeline.types import DataFrame, SparkSession


def add_spark(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", metavar="URL", help="where the job runs: local[*], local[N], spark://host:port, ...")
    options.add_config_file(group, "read [spark] and [log] from FILE; may be repeated, later files win")
    options.add_context(group)


def add_source(parser: argparse.ArgumentParser) -> None:
    """``--log`` or ``--lake``, and a choice of topics."""
    group = parser.add_argument_group("the events").add_mutually_exclusive_group()
    add_log(group, "a durable log, as in sqlite:///dir/log.db")
    group.add_argument("--lake", metavar="DIR", help="a table that `heliograph pipeline ingest` wrote")
    add_topics(parser)


def add_topics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topics", metavar="FILTER", nargs="+", default=["#"], help="topics to take, as in 'tenant-7/#' (default: all)"
    )


def read_conf(args: argparse.Namespace) -> cfg.ConfigOpts:
    """The configuration of ``--config-file`` with ``[log]``.  Raises InvalidConfig."""
    from durable_log import config as log_config
    from pubsub_api.config import new_conf

    conf = new_conf(args.config_file)
    conf.register_opts(log_config.OPTIONS, group=log_config.GROUP)
    return conf


def log_url(args: argparse.Namespace, conf: cfg.ConfigOpts) -> str:
    """The URL of the log with the options of ``[log]`` in it, because workers have no configuration file."""
    from durable_log.loading import portable_url

    return portable_url(args.log, conf=conf)


@contextlib.contextmanager
def spark_session(args: argparse.Namespace, conf: cfg.ConfigOpts, job: str) -> Iterator[SparkSession]:
    """A session that is stopped at the end of the ``with``.  Raises SparkMissing, JavaMissing, InvalidConfig, and
    PipelineError for every error of Spark itself."""
    from spark_pipeline.sessions.session import open_session, translated_errors

    session = open_session(conf, app_name=f"heliograph-{job}", master=args.master)
    try:
        with translated_errors(job):
            yield session
    finally:
        session.stop()


def check_source(args: argparse.Namespace, conf: cfg.ConfigOpts) -> None:
    """Check that ``--lake`` or ``--log`` exists, because starting Spark takes seconds.

    Raises PipelineError for a missing table, InvalidTopic, and what `durable_log.open` raises.
    """
    from pubsub_api.core.topics import check_filter
    from spark_pipeline.lake import LakeTable

    for topic_filter in args.topics:
        check_filter(topic_filter)
    if args.lake:
        LakeTable(args.lake).check_exists()
    else:
        check_log(args, conf)


def check_log(args: argparse.Namespace, conf: cfg.ConfigOpts) -> None:
    """Check that the log exists; print a note when it is empty.  Raises what `durable_log.open` raises."""
    with opened_log(args, conf) as log:
        note_empty(log, "heliograph pipeline")


def opened_log(args: argparse.Namespace, conf: cfg.ConfigOpts) -> contextlib.closing[LogApi]:
    """The log that ``--log`` names, for a ``with``.  Raises what `durable_log.open` raises, such as LogNotFound."""
    import durable_log

    return contextlib.closing(durable_log.open(log_url(args, conf), must_exist=True))


def read_events(spark: SparkSession, args: argparse.Namespace, conf: cfg.ConfigOpts) -> DataFrame:
    """The events of ``--topics`` in ``--log`` or ``--lake``."""
    from spark_pipeline.lake import LakeTable
    from spark_pipeline.reading.whole_log import read_log, select_topics

    if args.lake:
        return select_topics(LakeTable(args.lake).read(spark), args.topics)
    return read_log(spark, log_url(args, conf), topics=args.topics)


def moment(text: str) -> int:
    """An argparse type: a point in time, as nanoseconds."""
    return Moment(text).ns(time.time_ns())


def require_writable(file: str | None) -> None:
    """Raises UsageError when the directory of a result file does not exist, before the work begins."""
    if file is not None and not pathlib.Path(file).absolute().parent.is_dir():
        raise UsageError(f"{file} cannot be written: there is no such directory")


def directory_at(path: str, what: str) -> pathlib.Path | ObjectDirectory:
    """A directory on this host or in an object store, which need not exist.  Raises UsageError for a wrong URL."""
    from spark_pipeline.objects import ObjectDirectory, is_url

    return ObjectDirectory(path, what) if is_url(path) else pathlib.Path(path)


def require_new_directory(path: str) -> None:
    """Raises UsageError when the directory exists, because a job never overwrites, and for a wrong URL."""
    place = directory_at(path, "the result")
    if place.exists() if isinstance(place, pathlib.Path) else place.names():
        raise UsageError(f"{path} exists already: name a directory that does not")
