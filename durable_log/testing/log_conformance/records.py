"""Records: compare-and-set, all or nothing, versions that only rise."""

from __future__ import annotations

import contextlib

import pytest

from durable_log.errors import RecordConflict
from durable_log.log_api import LogApi, Record
from durable_log.testing.log_conformance.base import LogConformanceBase
from pubsub_api.errors import UsageError
from pubsub_api.testing.receivers import in_threads


class RecordConformance(LogConformanceBase):
    def test_a_record_is_read_as_it_was_written(self, log: LogApi) -> None:
        value = bytes(range(256))
        [version] = log.put_records([("a/b", value, 0)])
        assert log.get_record("a/b") == Record("a/b", value, version)
        assert log.get_record("a") is None
        assert version > 0

    def test_versions_rise_also_after_a_delete(self, log: LogApi) -> None:
        seen = [*log.put_records([("a", b"1", None)]), *log.put_records([("a", b"", None)])]
        seen += log.put_records([("a", None, seen[-1])])
        assert log.get_record("a") is None
        seen += log.put_records([("a", b"3", 0)])
        assert seen == sorted(set(seen))
        assert log.get_record("a") == Record("a", b"3", seen[-1])

    def test_who_expects_another_version_changes_nothing(self, log: LogApi) -> None:
        [version] = log.put_records([("a", b"1", 0)])
        for expected in (0, version - 1, version + 1):
            if expected != version:
                with pytest.raises(RecordConflict, match="'a'"):
                    log.put_records([("a", b"2", expected)])
        with pytest.raises(RecordConflict):
            log.put_records([("absent", b"2", version)])
        assert log.get_record("a") == Record("a", b"1", version)

    def test_several_are_written_together_or_not_at_all(self, log: LogApi) -> None:
        first, second = log.put_records([("a", b"1", 0), ("b", b"1", 0)])
        with pytest.raises(RecordConflict, match="'b'"):
            log.put_records([("a", b"2", first), ("b", b"2", second + 1), ("c", b"2", 0)])
        assert [record.value for record in log.list_records("")] == [b"1", b"1"]
        log.put_records([("a", None, first), ("b", b"2", second), ("c", b"2", 0)])
        assert [(record.name, record.value) for record in log.list_records("")] == [("b", b"2"), ("c", b"2")]

    def test_deleting_what_is_not_there_is_fine(self, log: LogApi) -> None:
        log.put_records([("a", None, None), ("b", None, 0)])
        assert log.list_records("") == []

    def test_records_are_listed_by_prefix_and_name(self, log: LogApi) -> None:
        names = ["g/1", "g/10", "g/2", "group", "h", "g", "G/1", "g/\u00e9", "g/%_*?[x]"]
        log.put_records([(name, name.encode(), 0) for name in names])
        assert [record.name for record in log.list_records("")] == sorted(names)
        assert [record.name for record in log.list_records("g/")] == sorted(n for n in names if n.startswith("g/"))
        assert [record.name for record in log.list_records("g/1")] == ["g/1", "g/10"]
        assert log.list_records("nothing") == []
        assert [record.name for record in log.list_records("g/%")] == ["g/%_*?[x]"]

    def test_of_many_who_want_to_be_first_one_is(self, log: LogApi) -> None:
        def try_it(number: int) -> bool:
            with contextlib.suppress(RecordConflict):
                log.put_records([("leader", str(number).encode(), 0)])
                return True
            return False

        won = in_threads(8, try_it)
        assert sum(won) == 1
        found = log.get_record("leader")
        assert found is not None
        assert int(found.value) == won.index(True)

    def test_no_increment_is_lost(self, log: LogApi) -> None:
        log.put_records([("n", b"0", 0)])

        def increment(_: int) -> None:
            for _ in range(20):
                while True:
                    found = log.get_record("n")
                    assert found is not None
                    with contextlib.suppress(RecordConflict):
                        log.put_records([("n", str(int(found.value) + 1).encode(), found.version)])
                        break

        in_threads(4, increment)
        found = log.get_record("n")
        assert found is not None
        assert found.value == b"80"

    @pytest.mark.parametrize(
        "write",
        [("", b"", None), ("a" * 513, b"", None), ("a\0b", b"", None), ("a", "text", None), ("a", b"", -1),
         ("a", b"x" * (2**20 + 1), None), (7, b"", None)],
    )  # fmt: skip
    def test_what_is_no_record_is_refused(self, log: LogApi, write: tuple[str, bytes, int | None]) -> None:
        with pytest.raises(UsageError):
            log.put_records([("good", b"", 0), write])
        assert log.list_records("") == []

    def test_a_record_is_written_once_per_call(self, log: LogApi) -> None:
        with pytest.raises(UsageError):
            log.put_records([("a", b"1", None), ("a", b"2", None)])
