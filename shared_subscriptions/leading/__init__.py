"""A process that leads groups, or stands by to."""
