"""The protocol of a group without I/O: every call takes ``now`` and returns values.

=============== ==================================================================================================
``progress``    what of a stream is done: a low watermark, ranges above it, attempts
``events``      an event with what is needed to acknowledge it
``lanes``       one stream at one member: which event may be delivered next, retries, progress
``messages``    what borrowers and leaders say to each other
``borrower``    one subscription's side of the protocol; ``agent``: all of one member
``assignment``  which member gets which stream
``streams``     the leader's record of a stream, and the table of its states
``leader``      the other side of the protocol; ``members``: whom it knows
``declaration`` what a group is, and what operators want of it
``handler``     all of a member: its agent and the lanes of its streams
``candidate``   who leads: registration by compare-and-set, observed leases
=============== ==================================================================================================
"""
