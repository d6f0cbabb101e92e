"""Plumbing that every package needs, written once: periodic threads, back-off, waking, forks, private files.

Nothing here knows events, topics or databases.  Drivers may use it, too.
"""
