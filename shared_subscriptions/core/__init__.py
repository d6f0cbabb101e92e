"""The protocol of a group without I/O: every call takes ``now`` and returns values.

========================= ========================================================================================
``events``                an event with what is needed to acknowledge it; how shards are divided into partitions
``progress``              what of a partition is done: a low watermark, ranges above it, attempts
``messages``              what borrowers and leaders say to each other
``declaration``           what a group is, and what operators want of it
``redelivery``            what a member that died may have had: suspects, delivered in small pieces
``consuming.handler``     all of a member: its agent and its partitions
``consuming.partitions``  a partition at a member: what may be delivered next, retries, progress
``consuming.waiting``     events of a partition that are not with the user, in the order of each topic and key
``consuming.borrower``    one subscription's side of the protocol; ``consuming.agent``: all of one member
``leading.candidate``     which process leads: registration by compare-and-set, observed leases
``leading.leader``        the other side of the protocol; ``leading.members``: the members that it knows
``leading.partitions``    the leader's record of a partition, and the table of its states
``leading.assignment``    which member gets which partition; ``leading.queue``: portions instead of partitions
========================= ========================================================================================
"""
