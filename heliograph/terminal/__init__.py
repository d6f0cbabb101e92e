"""What commands do on a terminal besides printing results: confirmation, progress, counters of running work, logs."""
