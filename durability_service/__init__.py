"""The durability service: history for late joiners, data that outlives its publishers, and splits joined by policy.

===============  =====================================================================================
``core``         sans-IO: the sets of samples, name-spaces, membership, election, alignment, lifecycle
``service``      the shell around the core: bus, threads, store; its parts are in ``serving``
``storage``      what a service keeps on disk: SQLite, in generations; checkpoints of a database
``client``       history, deletion and status for processes that run no service; its parts are in ``clients``
``protocol``     what clients ask and services answer
``config``       the ``[durability]`` options, name-spaces and policies
``testing``      shipped: the seeded simulator of the core
===============  =====================================================================================

It never stands between publishers and subscribers: live events flow without it.
"""
