"""Errors of the data pipeline, in the same tree as all others (`pubsub_api.errors`)."""

from __future__ import annotations

from typing import ClassVar

from pubsub_api.core.errors import Fault
from pubsub_api.errors import HeliographError, UsageError


class PipelineError(HeliographError):
    """A job of the pipeline could not do what was asked."""

    fault: ClassVar[Fault] = "environment"


class JavaMissing(PipelineError):
    """No Java that Spark can run on was found.  The message says what to install."""


class SparkMissing(PipelineError):
    """PySpark is not installed, or too old.  The message names the pip extra."""


class SchemaMismatch(UsageError):
    """A table lacks a column that the job needs, or has it with another type."""


class JobNameTaken(UsageError):
    """A job of a group has the name of another one, whose checkpoint is not its own."""


class CheckpointCopied(UsageError):
    """A job of a group goes on from a checkpoint from which another query has gone on: one of the two is a copy."""
