"""Drivers that move frames, one module each.  Each implements `pubsub_api.driver` and has a ``list_opts``."""
