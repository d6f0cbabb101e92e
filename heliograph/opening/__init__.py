"""From the options of a command to an open bus, database or log."""
