"""The data pipeline: everything that was ever published as tables of Spark.

`session.open_session` starts Spark; `reading.read_log` and the format ``heliograph`` read and write a durable log;
`jobs` has the jobs.  Importing this package imports no Spark.
"""
