"""The demonstration: a database, a publisher and several controllers that keep a local copy, under faults.

`truth` is the database, a file.  `actors` are the publisher and the controllers.  `troupe` runs them, as processes or,
where only the memory driver is at hand, as threads.  `play` is what happens to them, and the proof at the end.
"""
