"""What Heliograph ships for tests of databases and of what is built on them.

==================  ====================================================================================
``db_conformance``  the suite that defines a correct database driver; needs pytest
``db_child``        the writer in another process that the suite talks to
``replay``          a model of a database that changes are applied to, and a reader of the feed
==================  ====================================================================================

Nothing is imported here, so that a program which uses one of them does not need pytest.
"""
