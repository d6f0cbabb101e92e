"""Rows that leave Spark: to a log, a database, or the bus."""
