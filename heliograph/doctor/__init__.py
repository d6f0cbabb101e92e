"""What ``heliograph doctor`` looks at.

`findings` is the vocabulary.  `host` looks at Python, libraries, limits and the clock; `files` at the configuration;
`bus` at the driver, its address or server, and at a real event on its way; `logs` at the store of the log.
"""
