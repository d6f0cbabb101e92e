"""What Heliograph ships for tests: for its own, and for tests of drivers and of programs that use it.

=================  ==================================================================================
``conformance``    the suite that defines a correct driver; needs pytest
``conf_fixture``   a ``conf`` with short times, as a pytest fixture
``fast_conf``      a ``conf`` with short times, as a function
``faults``         faults of a link, seeded and counted
``faulty``         a wrapper that makes any driver lose, repeat, reorder and delay
``frames``         correct frames for tests of drivers
``ports``          ports that no other process of the tests uses
``simulator``      the core in a simulated network, from a seed, checked by an oracle of the delivery contract
``receivers``      a receiver that records, and waits with a deadline
``child``          a publisher or subscriber in another process, which tests control
=================  ==================================================================================

Nothing is imported here, so that a program that uses one of them does not need pytest.
"""
