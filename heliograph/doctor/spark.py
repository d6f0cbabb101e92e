"""Checks of what the data pipeline needs: PySpark, a Java, memory.  They do not start Spark."""

from __future__ import annotations

import os

from heliograph.doctor.findings import CheckContext, Finding

MEMORY_BYTES_MIN = 2 * 1024**3
_REMEDY = "pip install 'heliograph[spark]', which brings Spark and a Java"


def check_spark(_context: CheckContext) -> list[Finding]:
    """A host without PySpark is fine: most hosts of a bus run no jobs."""
    from spark_pipeline.errors import JavaMissing, SparkMissing
    from spark_pipeline.sessions.java import find_java
    from spark_pipeline.sessions.session import check_pyspark

    try:
        version = check_pyspark()
    except SparkMissing:
        return [Finding("spark", "ok", "not installed, and not needed unless jobs run here", f"if wanted: {_REMEDY}")]
    try:
        java = find_java()
    except JavaMissing as error:
        return [Finding("spark", "failed", str(error), _REMEDY)]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    detail = f"PySpark {version}, Java {java.version} ({java.origin}), {memory / 1024**3:.1f} GiB of memory"
    if memory < MEMORY_BYTES_MIN:
        return [Finding("spark", "warning", detail, "lower [spark] driver_memory, or run jobs on another host")]
    return [Finding("spark", "ok", detail)]
