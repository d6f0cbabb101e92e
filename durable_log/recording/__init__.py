"""From the bus into a log, without holes."""
