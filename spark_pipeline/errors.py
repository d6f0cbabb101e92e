"""Errors of the data pipeline, in the same tree as all others (`pubsub_api.errors`)."""

from __future__ import annotations

from typing import ClassVar

from pubsub_api.core.errors import Fault
from pubsub_api.errors import HeliographError, UsageError

__all__ = [
    "CheckpointCopied",
    "JavaMissing",
    "JobNameTaken",
    "LakeConflict",
    "OtherLog",
    "PipelineError",
    "SchemaMismatch",
    "SparkMissing",
]


class PipelineError(HeliographError):
    """A job of the pipeline could not do what was asked."""

    fault: ClassVar[Fault] = "environment"


class JavaMissing(PipelineError):
    """No Java that Spark can run on was found.  The message says what to install."""


class SparkMissing(PipelineError):
    """PySpark is not installed, or too old.  The message names the pip extra."""


class SchemaMismatch(UsageError):
    """A table lacks a column that the job needs, or has it with another type."""


class OtherLog(UsageError):
    """A log is not the one, or not the state of it, that a checkpoint or a table of the lake was made from."""


class LakeConflict(PipelineError):
    """Another job committed to a table of the lake at the same time.  Nothing was added; look again, then retry."""

    retriable = True


class JobNameTaken(UsageError):
    """A query has the name of another one, whose checkpoint is not its own."""


class CheckpointCopied(UsageError):
    """A query goes on from a checkpoint from which another one has gone on: one of the two is a copy, or old."""
