"""From the command-line options to an open bus, database or log."""
