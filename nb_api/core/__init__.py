"""Decisions of the database side without I/O: the copy, elections, the directory of publishers."""
