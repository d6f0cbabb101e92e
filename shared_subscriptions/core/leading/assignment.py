"""Which member gets which partition: balanced within one, sticky, with as few moves as balance allows.

Members are named by *slots*: a stable name, or the borrower itself when it has none.  A member that comes back under
its name finds its former partitions preferred for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def assign(
    partitions: Collection[int], slots: Collection[str], held: Mapping[int, str], former: Mapping[int, str]
) -> dict[int, str]:
    """Partition -> slot, for every partition.  Empty when there is no slot.

    ``held`` is the slot that has a partition now, ``former`` the one that had it before.  The numbers of two slots
    differ by one at most; a slot gives up only what it holds beyond its share, first of all what was another's that is
    to get more.
    """
    if not slots:
        return {}
    holdings: dict[str, list[int]] = {slot: [] for slot in slots}
    for partition in sorted(partitions):
        if held.get(partition) in holdings:
            holdings[held[partition]].append(partition)
    shares = _shares(len(partitions), holdings)
    needy = {slot for slot, share in shares.items() if len(holdings[slot]) < share}
    kept: dict[int, str] = {}
    for slot, holding in holdings.items():
        # What another slot is waiting for goes to the end of the list, and the end is given up.
        ranked = sorted(holding, key=lambda partition: (former.get(partition) in needy, partition))
        kept.update(dict.fromkeys(ranked[: shares[slot]], slot))
    free = [partition for partition in sorted(partitions) if partition not in kept]
    return kept | _hand_out(free, _room(shares, kept), former)


def _shares(count: int, holdings: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """How many partitions each slot should have.  The one that holds most keeps what does not divide evenly."""
    base, extra = divmod(count, len(holdings))
    ranked = sorted(holdings, key=lambda slot: (-len(holdings[slot]), slot))
    return {slot: base + (place < extra) for place, slot in enumerate(ranked)}


def _room(shares: Mapping[str, int], kept: Mapping[int, str]) -> dict[str, int]:
    room = dict(shares)
    for slot in kept.values():
        room[slot] -= 1
    return room


def _hand_out(free: Sequence[int], room: dict[str, int], former: Mapping[int, str]) -> dict[int, str]:
    given: dict[int, str] = {}
    for partition in free:
        slot = former.get(partition, "")
        if room.get(slot, 0) > 0:
            given[partition] = slot
            room[slot] -= 1
    for partition in free:
        if partition not in given:
            slot = min(room, key=lambda name: (-room[name], name))
            given[partition] = slot
            room[slot] -= 1
    return given
