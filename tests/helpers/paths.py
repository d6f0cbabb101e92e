"""Where the checkout is, and the certificates that tests use."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TLS = ROOT / "tests" / "tls"
