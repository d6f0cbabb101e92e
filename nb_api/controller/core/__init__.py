"""The decisions of a controller: which key is worked on next, and whom a change concerns.  Does no I/O."""
