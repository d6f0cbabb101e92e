"""What tests share, by what it is for.

Everywhere
    ``waiting`` on a condition with a deadline, ``paths`` of the checkout, ``wires`` that can be cut.
Foreign servers, each private, real and on a free port
    ``servers``: Redis and TLS; ``servers_db``: PostgreSQL and etcd; ``etcd_cluster``, ``redis_sites``: several members;
    ``s3_server``: an object store; ``server_process``: what all of them can do.  Fixtures are in ``conftest.py`` files.
Processes to be killed, frozen and forked
    ``warm_processes``: what all of them begin with; ``nodes``: publishers and subscribers; ``service_nodes``: the
    publisher service and its workers, with ``forking_worker`` and ``prefork_app``; ``nb_nodes``: writers and
    controllers; ``lease_child`` and ``shard_child``: elections and shards of keys; ``fleet_nodes``: members of a
    fleet; ``group_nodes`` and ``bus_members``: members of groups; ``durability_domain``: durability services;
    ``log_storm``: all that keeps a log.
The database side in this process
    ``nb_tools``: an `NbApi`; ``nb_worlds``: a writer and copies; ``followed`` and ``histories``: lost histories;
    ``scripted_cache`` and ``cache_model``: local caches; ``db_faults``: servers in trouble; ``logs``: logs;
    ``log_copies``: older copies of them.
Ends of drivers
    ``zmq_tools``, ``zenoh_ends``, ``redis_ends``, ``longpoll_ends``.
The command
    ``consoles``, ``chromium``: the page; ``scraping``: metrics.
Code and pages as data
    ``code_map``: modules, names and threads, and the pages made of them; ``source_trees``; ``documents``: the pages;
    ``metric_help`` and ``statistic_fields``: statistics; ``deployment``: files of ``etc``.
The run of the tests itself
    ``distribution`` over processes, ``compiling``, ``hang_limit``, ``made_once``.
"""
