"""Services whose sets are larger than the memory they may use: all that they do, they do from disk."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
from collections.abc import Iterator

import pytest

import pubsub_api
from durability_service.core.sets.batches import from_content, pack, unpack
from durability_service.core.sets.samples import make_sample
from durability_service.errors import StoreFailed
from tests.helpers.durability_domain import TIMEOUT_S, Domain, read_history
from tests.helpers.waiting import wait_until

OBJECTS = 3000
HOT_BYTES = 8192
TOPIC = "orders/eu"


@pytest.fixture
def local(tmp_path: pathlib.Path) -> Iterator[Domain]:
    made = Domain(f"memory://{tmp_path.name}", tmp_path, is_bind_based=False)
    yield made
    made.close()


def publish(domain: Domain, values: dict[str, object], *, action: pubsub_api.Action = "set") -> None:
    with pubsub_api.open(conf=domain.session.conf) as session:
        publisher = session.publisher()
        publisher.send_events(
            [
                pubsub_api.Event(topic=TOPIC, table="order", key=key, action=action, value=value)
                for key, value in values.items()
            ]
        )
        publisher.confirm(services=len(domain.services), timeout_s=TIMEOUT_S)
        publisher.close()


def counter(domain: Domain, node: str, name: str) -> int:
    return domain.services[node].status().counters[name]


def test_everything_is_done_from_disk(local: Domain) -> None:
    expected: dict[str, object] = {f"k{number}": number for number in range(OBJECTS)}
    local.start("a", hot_bytes_max=HOT_BYTES)
    local.wait_complete()
    publish(local, expected)
    changed: dict[str, object] = {f"k{number}": "newer" for number in range(0, OBJECTS, 7)}
    publish(local, changed)
    gone: dict[str, object] = {f"k{number}": None for number in range(0, OBJECTS, 10)}
    publish(local, gone, action="delete")
    expected = {key: value for key, value in {**expected, **changed}.items() if key not in gone}
    assert read_history(local.session, None, ["#"]) == expected
    local.stop("a")
    local.start("a", hot_bytes_max=HOT_BYTES)
    local.wait_complete()
    assert counter(local, "a", "hot_bytes") < 100 * HOT_BYTES, "a start takes no samples into memory"
    assert read_history(local.session, None, ["#"]) == expected
    assert counter(local, "a", "buckets_read") > 0
    local.start("b", hot_bytes_max=HOT_BYTES)
    local.wait_complete()
    local.stop("a")
    assert read_history(local.session, None, ["#"]) == expected
    late: dict[str, object] = {f"k{number}": "late" for number in range(1, OBJECTS, 50)}
    publish(local, late)  # a is not there
    expected |= late
    local.start("a", hot_bytes_max=HOT_BYTES)
    local.wait_complete()
    local.stop("b")
    found = read_history(local.session, None, ["#"])
    assert {key: found[key] for key in late} == late
    assert found == expected
    with local.client() as client:
        client.delete_historical_data(["orders/#"], timeout_s=TIMEOUT_S)
    assert read_history(local.session, None, ["#"]) == {}
    wait_until(lambda: local.services["a"].status().name_spaces[0].samples == 0, TIMEOUT_S, "the disk to be empty")
    local.stop("a")
    local.start("a", hot_bytes_max=HOT_BYTES)
    local.wait_complete(samples=0)


def test_a_set_that_was_kept_in_another_number_of_buckets_is_found(local: Domain) -> None:
    expected: dict[str, object] = {f"k{number}": number for number in range(500)}
    for buckets in (1024, 64, 1000):
        local.start("a", hot_bytes_max=HOT_BYTES, buckets=buckets)
        local.wait_complete()
        if buckets == 1024:
            publish(local, expected)
        assert read_history(local.session, None, ["#"]) == expected
        local.stop("a")


@pytest.mark.parametrize("is_whole", [False, True], ids=["damaged", "another one"])
def test_a_bucket_that_is_not_what_was_written_ends_the_service(local: Domain, *, is_whole: bool) -> None:
    """It is never given to anybody."""
    local.start("a", hot_bytes_max=HOT_BYTES)
    local.wait_complete()
    publish(local, {"k1": 1})
    local.stop("a")
    local.start("a", hot_bytes_max=HOT_BYTES)  # puts the change into its bucket
    local.wait_complete()
    other = make_sample(
        TOPIC, "order", "k1", timestamp=1, writer=bytes(16), number=1, is_delete=False, event=b"\x90"
    )  # fmt: skip
    with contextlib.closing(sqlite3.connect(local.directory / "a.db")) as database, database:
        for row, content in database.execute("SELECT id, content FROM bucket").fetchall():
            changed = pack([other]).content if is_whole and unpack(from_content(content)) else content[:-1] + b"x"
            database.execute("UPDATE bucket SET content = ? WHERE id = ?", (changed, row))
    database.close()
    with local.client() as client:
        client.history(["#"], timeout_s=0.5)
        with pytest.raises(StoreFailed, match="not what was written" if is_whole else "damaged"):
            local.services["a"].wait(TIMEOUT_S)
        assert client.status(timeout_s=0.5) == [], "who has failed answers nobody"
