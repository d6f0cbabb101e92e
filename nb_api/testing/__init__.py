"""What Heliograph ships for tests of databases and of what is built on them.

==================  ====================================================================================
``db_conformance``  the suite that defines a correct database driver; needs pytest
``db_child``        a writer in another process, which tests control
``memory_system``   a database, a bus in memory, writers, copies and controllers within a test
``virtual_time``    a clock of controllers that a test advances
``replay``          a model of a database that changes are applied to, and a reader of the feed
==================  ====================================================================================

Nothing is imported here, so that a program that uses one of them does not need pytest.
"""
