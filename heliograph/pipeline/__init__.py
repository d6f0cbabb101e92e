"""What ``heliograph pipeline`` runs: one module per job, each with ``add_arguments`` and ``run``."""
