"""Log drivers, loaded by the entry points of ``heliograph.log_driver``."""
