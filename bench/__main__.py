"""``python -m bench``."""

from __future__ import annotations

import sys

try:
    from bench.cli import main
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in {"bench", "pubsub_api", "nb_api", "durable_log"}:
        raise
    sys.stderr.write(
        f"bench: the Python library {error.name!r} is not installed: pip install '.[all,bench]', or ./run bench\n"
    )
    sys.exit(3)  # the code of `heliograph` for what the environment lacks

if __name__ == "__main__":
    sys.exit(main())
