"""The demonstration: a database, forked writers, their publisher service, and controllers that keep a copy, under
faults.

`actors` are the writers, the service and the controllers: the product itself, used as anyone would use it.  `troupe`
runs them, as processes or, where only the memory driver is at hand, as threads.  `play` is what happens to them, and
the proof at the end.
"""
