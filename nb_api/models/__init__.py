"""Tables declared as classes: values are checked before they are committed, and readers get instances.

    from nb_api.models import Model

    class Port(Model, table="port"):
        network: str
        up: bool = False

    nb.table(Port).create("p1", Port("n1"), topic="tenant-7")
    cache.table(Port).get("p1").value.network

A class is a `Model`, or a dataclass, a `msgspec.Struct` or a pydantic model that `stored_in` binds to a table.  A value
that does not fit the class raises `nb_api.errors.ValueMismatch`.
"""

from nb_api.models.cached_table import CachedTable, Mismatched, TableSubscription
from nb_api.models.declaring import Model, stored_in, table_of
from nb_api.models.table import Table, TransactionTable

__all__ = [
    "CachedTable",
    "Mismatched",
    "Model",
    "Table",
    "TableSubscription",
    "TransactionTable",
    "stored_in",
    "table_of",
]
