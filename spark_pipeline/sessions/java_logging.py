"""What Spark's Java writes to standard error: errors, and nothing about how it starts.

Spark has a level for its messages that takes effect when it has started; until then it warns of libraries that are not
needed here, and tells how to change the level.  A configuration of its logging library takes effect from the first
line.
"""

from __future__ import annotations

import os
import tempfile

from spark_pipeline.paths import cache_directory

OPTION = "spark.driver.extraJavaOptions"
_PROPERTY = "log4j2.configurationFile"
_CONFIGURATION = """\
rootLogger.level = error
rootLogger.appenderRef.errors.ref = errors
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.errors.type = Console
appender.errors.name = errors
appender.errors.target = SYSTEM_ERR
appender.errors.layout.type = PatternLayout
appender.errors.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


def quietly(java_options: str) -> str | None:
    """Options for Java, those given among them, with which only errors are written.  None when the user has said how
    messages are written, or when there is no place for the file."""
    cache = cache_directory()
    if cache is None or _PROPERTY in java_options or " " in str(cache):
        return None
    file = cache / "log4j2.properties"
    if not file.is_file() or file.read_text() != _CONFIGURATION:
        with tempfile.NamedTemporaryFile("w", dir=cache, delete=False) as new:
            new.write(_CONFIGURATION)
        os.replace(new.name, file)
    return f"-D{_PROPERTY}={file.as_uri()} {java_options}".rstrip()
