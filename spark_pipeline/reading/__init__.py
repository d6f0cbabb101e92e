"""The log as a table and as a stream of Spark."""
