"""What all drivers on PostgreSQL share: what a URL says, connections, and how tables come into being once.

Errors are those of a database (`nb_api.errors`); a driver of something else translates them.
"""
