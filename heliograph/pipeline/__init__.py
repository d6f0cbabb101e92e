"""The jobs of ``heliograph pipeline``: a module each, with ``add_arguments`` and ``run``."""
