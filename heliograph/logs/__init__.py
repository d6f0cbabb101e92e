"""Verbs of `heliograph log` that read a log, and that move events between it and files."""
