"""The subscriber's half of the core: order, loss detection, repair, resync.  Does no I/O."""
