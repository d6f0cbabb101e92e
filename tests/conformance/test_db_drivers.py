"""The embedded database, against the suite that defines a correct driver.

The databases that need a server have a file each beside this one.
"""

from __future__ import annotations

from nb_api.testing.db_conformance import DbConformance


class TestSqlite(DbConformance):
    url = "sqlite://{directory}/{name}.db"
