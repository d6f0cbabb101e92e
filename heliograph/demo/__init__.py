"""The demonstration: a database, forked writers, their publisher service, and controllers that keep a copy, under
faults.

`processes` has the writers, the service and the controllers, which use the product as programs do.  `runner` runs them,
as processes or, with the memory driver, as threads.  `steps` causes the faults and makes the proof at the end.
"""
