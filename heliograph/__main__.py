"""``python -m heliograph``: the same as the installed command."""

from __future__ import annotations

import sys

from heliograph.main import main

if __name__ == "__main__":
    sys.exit(main())
