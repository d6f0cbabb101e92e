"""What a local cache holds, and what it does with news of any age.  Does no I/O."""
