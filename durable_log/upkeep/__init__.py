"""Sealing on time, retention, verification and repair of a log."""
