"""Spark sessions: Java, Python workers, settings."""
