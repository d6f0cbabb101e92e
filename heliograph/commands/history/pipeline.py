"""``heliograph pipeline``: jobs on Spark over all recorded events."""

from __future__ import annotations

import argparse

from heliograph import options
from heliograph.pipeline import audit, compact, heads, ingest, merge, optimize, replay, vacuum

DESCRIPTION = """\
Ingest, check, compact, merge and replay recorded events of any size: on this machine, or on a cluster with --master.

`pip install 'heliograph[spark]'` installs Spark, and a Java for it when the machine has none.
"""
EXAMPLES = """\
  heliograph pipeline ingest --log sqlite:///var/log.db --lake /data/events
  heliograph pipeline audit --lake /data/events
  heliograph pipeline compact --lake /data/events --out /data/snapshot --master 'local[4]'
"""
_JOBS = (ingest, compact, audit, heads, merge, replay, optimize, vacuum)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    jobs = parser.add_subparsers(title="jobs", metavar="JOB", dest="job", required=True)
    for job in _JOBS:
        name = job.__name__.rpartition(".")[2]
        options.add_command(jobs, name, job.SUMMARY, job, "error")
