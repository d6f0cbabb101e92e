"""The ``heliograph`` command.  Everything it does goes through the public packages; nothing here is an API."""
