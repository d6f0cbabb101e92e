"""The etcd driver against the suite that defines a correct one: a cluster with TLS and users, whose first endpoint is
killed after some tests and comes back after some more."""

from __future__ import annotations
