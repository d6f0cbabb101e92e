"""The checks of ``heliograph doctor``.

`findings` has their types.  `host` checks Python, libraries, limits and the clock; `files` the configuration; `bus` the
driver, its address or server, and the way of a real event; `logs` the store of the log; `spark` Spark and its Java.
"""
