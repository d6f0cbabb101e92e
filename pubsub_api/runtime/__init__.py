"""Plumbing that every package needs, written once: threads that repeat, back-off, waking, forks, private files.

Nothing here knows events, topics or databases.  For drivers to use, too.
"""
