"""The demonstration: a database, forked writers, their publisher service, and controllers that keep a copy, under
faults.

`processes` are the writers, the service and the controllers: the product itself, used as anyone would use it.  `runner`
runs them, as processes or, where only the memory driver is at hand, as threads.  `steps` is what happens to them, and
the proof at the end.
"""
