"""The publisher's half of the core: numbers, the cache from which holes are repaired, replies.  Does no I/O."""
