"""Whom a change concerns: the keys that a controller has to work on when an object changes.  Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from nb_api.controller.core.keys import Key
from nb_api.core.changes import DbObject
from pubsub_api.errors import UsageError

OwnersOf = Callable[[DbObject], Iterable[tuple[str, str]]]
"""From an object of a dependent table to the (table, key) of each object that is worked on when it changes."""


class OwnerMap:
    """Remembers every object that was seen, with its owners: those that it had are concerned, too, when it gets others.

    Objects of ``tables`` are worked on themselves; None stands for every table without a function in ``owners``.  Being
    told twice, or of an object that is not known, does no harm.  ``is_held`` says whether objects of a table can be
    known at all: an owner of another table would look as if it were deleted.  Not thread-safe.
    """

    def __init__(
        self,
        tables: Sequence[str] | None,
        owners: Mapping[str, OwnersOf],
        *,
        is_held: Callable[[str], bool] = lambda _table: True,
    ) -> None:
        self._is_held = is_held
        self._own = None if tables is None else frozenset(tables)
        self._functions = dict(owners)
        self._known: dict[str, dict[str, tuple[Key, ...]]] = {}

    @property
    def tables(self) -> frozenset[str] | None:
        """The tables that are followed; None: all."""
        return None if self._own is None else self._own | self._functions.keys()

    def is_followed(self, table: str) -> bool:
        return table in self._functions or self.is_own(table)

    def is_own(self, table: str) -> bool:
        """Whether objects of this table are worked on themselves."""
        return table not in self._functions if self._own is None else table in self._own

    def put(self, table: str, key: str, get: Callable[[], DbObject]) -> Sequence[Key]:
        """The object is there, new or changed: the keys that are concerned.  ``get`` gives it, if that is needed.

        Raises what the function of its table raises, and UsageError when it tells no owners; then the owners it had are
        still known as its owners.
        """
        known = self._known.setdefault(table, {})
        function = self._functions.get(table)
        if function is None:
            owners: tuple[Key, ...] = ()
        else:
            owners = self._checked(function(get()))
        before = known.get(key, ())
        # Most objects keep their owners: then one tuple serves both.
        known[key] = before if owners == before else owners
        concerned = owners if owners == before else tuple(dict.fromkeys((*before, *owners)))
        return (Key(table, key), *concerned) if self.is_own(table) else concerned

    def owners_before(self, table: str, key: str) -> Sequence[Key]:
        """The keys that an object concerns as far as is known, itself included."""
        before = self._known.get(table, {}).get(key, ())
        return (Key(table, key), *before) if self.is_own(table) else before

    def remove(self, table: str, key: str) -> Sequence[Key]:
        """The object is gone: the keys that are concerned."""
        concerned = self.owners_before(table, key)
        self._known.get(table, {}).pop(key, None)
        return concerned

    def names(self) -> Iterator[tuple[str, str]]:
        """Table and key of every object that is known."""
        return ((table, key) for table, known in self._known.items() for key in known)

    def keys(self) -> Iterator[Key]:
        """The keys that all objects concern that are known, some of them several times."""
        for table, known in self._known.items():
            is_own = self.is_own(table)
            for key, owners in known.items():
                if is_own:
                    yield Key(table, key)
                yield from owners

    def _checked(self, told: Iterable[tuple[str, str]] | None) -> tuple[Key, ...]:
        if told is None:
            raise UsageError("the function of owners returned None: give a list, an empty one when there are none")
        owners = tuple(dict.fromkeys(map(_checked, told)))
        for owner in owners:
            if not self._is_held(owner.table):
                raise UsageError(f"the owner {owner} is of a table that the local cache does not follow")
        return owners


def _checked(owner: object) -> Key:
    """A pair and nothing else: a string of two letters could be taken for one."""
    if isinstance(owner, tuple) and len(owner) == 2 and all(isinstance(part, str) for part in owner):
        return Key(*owner)
    raise UsageError(f"an owner is a pair of table and key, not {owner!r}; give a list of such pairs")
