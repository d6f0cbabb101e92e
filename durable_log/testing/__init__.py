"""What Heliograph ships for tests of logs and of what is built on them.

===================  ====================================================================================
``log_conformance``  the suite that defines a correct log driver; needs pytest
``log_child``        the process that the suite talks to
``sources``          makes numbered frames, reads a log back, and checks what is true of every log
===================  ====================================================================================

Nothing is imported here, so that a program which uses one of them does not need pytest.
"""
