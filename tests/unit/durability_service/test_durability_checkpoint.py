"""Checkpoints in pages: whole or none, also while the next one is being written."""

from __future__ import annotations

import msgspec
import pytest

from durability_service.core.sets.samples import Sample, make_sample
from durability_service.storage.checkpoint import (
    PAGE_BYTES_MAX,
    TABLE,
    TOPIC,
    CheckpointPage,
    _paged,
    page_of,
    read_checkpoint,
)


def sample(number: int | str, page: object, *, is_delete: bool = False, table: str = TABLE) -> Sample:
    event = msgspec.msgpack.encode([table, str(number), "set", msgspec.to_builtins(page), 1, 1])
    return make_sample(
        TOPIC, table, str(number), timestamp=1, writer=b"w" * 16, number=1, is_delete=is_delete, event=event
    )


def entries(count: int) -> list[tuple[str, str, str, int]]:
    return [("tenant-1/port", "port", f"p{number}", number) for number in range(1, count + 1)]


def test_pages_are_as_few_as_fit_and_hold_everything_once() -> None:
    assert len(_paged([], 7)) == 1
    assert len(_paged(entries(100), 7)) == 1
    pages = _paged(entries(20_000), 7)
    assert len(pages) > 1
    assert sorted(entry for page in pages for entry in page.objects) == sorted(entries(20_000))
    assert all(len(msgspec.msgpack.encode(page)) < 2 * PAGE_BYTES_MAX for page in pages)
    for number, page in enumerate(pages):
        assert all(page_of((table, key), len(pages)) == number for _, table, key, _ in page.objects)


def test_a_checkpoint_is_read_back() -> None:
    pages = _paged(entries(20_000), 7)
    known = read_checkpoint([sample(number, page) for number, page in enumerate(pages)])
    assert known is not None
    assert known.revision == 7
    assert known.versions == {("port", f"p{number}"): (number, "tenant-1/port") for number in range(1, 20_001)}


def test_pages_of_two_checkpoints_prove_the_older_revision() -> None:
    old, new = _paged(entries(20_000), 7), _paged(entries(20_001), 9)
    mixed = [sample(number, (new if number else old)[number]) for number in range(len(old))]
    known = read_checkpoint(mixed)
    assert known is not None
    assert known.revision == 7
    names = [("port", f"p{number}") for number in range(1, 20_001)]
    assert {known.revision_of(name) for name in names} == {7, 9}
    assert all(known.revision_of(name) == (7 if page_of(name, len(old)) == 0 else 9) for name in names)


@pytest.mark.parametrize(
    "found",
    [
        [],
        [sample(0, CheckpointPage(7, 2, []))],
        [sample(0, CheckpointPage(7, 2, [])), sample(1, CheckpointPage(9, 4, []))],
        [sample(0, CheckpointPage(7, 1, []), is_delete=True)],
        [sample(0, {"revision": "7"})],
        [sample(0, CheckpointPage(7, 1, []), table="port")],
        [sample("x", CheckpointPage(7, 1, []))],
    ],
    ids=["nothing", "a part", "two numbers of pages", "deleted", "no page", "another table", "another key"],
)
def test_what_is_not_whole_is_no_checkpoint(found: list[Sample]) -> None:
    assert read_checkpoint(found) is None


def test_pages_that_are_left_over_from_a_larger_one_do_no_harm() -> None:
    known = read_checkpoint([sample(0, CheckpointPage(9, 1, [])), sample(1, CheckpointPage(7, 2, entries(1)))])
    assert known is not None
    assert known.versions == {}
