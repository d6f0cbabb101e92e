"""What all drivers on SQLite share: connections, group commit, waiting for locks, and how a file is made and claimed.

Errors are those of a database (`nb_api.errors`); a driver of something else translates them.
"""
