"""The durability service: history for late joiners, data that outlives its publishers, and splits joined by policy.

===============  =====================================================================================
``core``         sans-IO: the sets of samples, name-spaces, membership, election, alignment, lifecycle
``testing``      shipped: the seeded simulator of the core
``config``       the ``[durability]`` options, name-spaces and policies
``store``        what a service keeps on disk: SQLite, in generations
``service``      the shell around the core: bus, threads, store
``client``       history, deletion and status for processes that run no service of their own
===============  =====================================================================================

It never stands between publishers and subscribers: live events flow without it.
"""
