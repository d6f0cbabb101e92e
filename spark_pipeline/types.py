"""The types of Spark that appear in signatures, for programs that start jobs and import no Spark themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    __all__ = ["DataFrame", "SparkSession"]
