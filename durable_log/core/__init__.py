"""Decisions of the log without I/O: what is new in a frame, where streams stand, which ranges are missing."""
