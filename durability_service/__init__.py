"""The durability service: it keeps history for late subscribers, on disk if wanted, and joins the two sides of a split.

===============  =====================================================================================
``core``         sans-IO: the sets of samples, name-spaces, membership, election, alignment, lifecycle
``service``      the shell around the core: bus, threads, store; its parts are in ``serving``
``storage``      the store, a SQLite file with generations of sets; checkpoints of a database
``client``       history, deletion and status for processes that run no service; its parts are in ``clients``
``protocol``     questions of clients and answers of services
``config``       the ``[durability]`` options, name-spaces and policies
``testing``      shipped: the seeded simulator of the core
===============  =====================================================================================

Live events do not pass through a service: publishers and subscribers work without it.
"""
