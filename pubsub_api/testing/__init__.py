"""What Heliograph ships for tests: its own, and those of people who write drivers or programs on top of it.

=================  ==================================================================================
``conformance``    the suite that defines a correct driver; needs pytest
``conf_fixture``   a ``conf`` with short times, as a pytest fixture
``fast_conf``      a ``conf`` with short times, as a function
``faults``         what a link does wrong, seeded and counted
``faulty``         a wrapper that makes any driver lose, repeat, reorder and delay
``frames``         sound frames for tests of drivers
``ports``          ports that nobody else is given
``simulator``      the core in a simulated network, from a seed, judged by an oracle of the delivery contract
``receivers``      a receiver that records, and waits with a deadline
``child``          the publisher or subscriber in another process that the suite talks to
=================  ==================================================================================

Nothing is imported here, so that a program which uses one of them does not need pytest.
"""
