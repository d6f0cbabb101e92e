"""The log in PostgreSQL: what its server and its standbys promise, who may use it, and what a URL may say."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import durable_log
from durable_log.testing.sources import Source, check_consistent, numbers
from heliograph import exits
from heliograph.main import main
from pubsub_api.errors import InvalidConfig
from tests.helpers.logs import in_time, opened
from tests.helpers.servers_db import PostgresServer, schema_of
from tests.helpers.waiting import wait_until

TOPIC = "t"
DOCTOR = ("doctor", "--bus", "memory://x", "--timeout", "60", "--json")


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return f"{postgres.new_schema()}&shards=2"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("durable_log")]


def test_a_server_that_may_lose_what_it_has_committed_is_warned_of(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with PostgresServer(fsync="off", synchronous_commit="off") as server:
        durable_log.open(server.url()).close()
        said = " ".join(warnings(caplog))
        assert "fsync = off: a crash of its host loses" in said
        assert "synchronous_commit = off: the log overrules that" in said
        assert main(["log", "info", "--log", server.url(), "--json"]) == exits.OK
        assert len(json.loads(capsys.readouterr().out)["warnings"]) == 2
        assert main([*DOCTOR, "--log", server.url()]) == exits.OK
        findings = json.loads(capsys.readouterr().out)["findings"]
        assert [one["status"] for one in findings if one["check"] == "log"] == ["warning", "warning"]


def test_a_good_server_is_not_warned_of(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    with PostgresServer(fsync="on") as server:
        assert main([*DOCTOR, "--log", server.url()]) == exits.OK
        [found] = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["check"] == "log"]
        assert (found["status"], "there is no log at" in found["detail"]) == ("ok", True)
        durable_log.open(server.url()).close()
        assert warnings(caplog) == []
        assert main([*DOCTOR, "--log", server.url()]) == exits.OK
        [found] = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["check"] == "log"]
        assert (found["status"], "is kept" in found["detail"]) == ("ok", True)


def hasty(url: str) -> contextlib.closing[durable_log.LogApi]:
    """A log that gives up soon; opening it may take several attempts on a busy host."""
    return contextlib.closing(in_time(lambda: durable_log.open(url)))


@pytest.fixture
def lonely() -> Iterator[PostgresServer]:
    """A server of its own, which `set_standby` lets wait for a standby that is not there."""
    with PostgresServer() as server:
        yield server


def set_standby(server: PostgresServer, name: str) -> None:
    with server.client() as client:
        client.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        client.execute("SELECT pg_reload_conf()")
        wait_until(lambda: is_set(server, name), 60, "the server to heed it")


def is_set(server: PostgresServer, name: str) -> bool:
    with server.client() as client:
        return client.execute("SHOW synchronous_standby_names").fetchall() == [(name,)]


def test_what_no_standby_has_is_not_acknowledged_and_not_doubled(lonely: PostgresServer) -> None:
    source = Source()
    with opened(f"{lonely.url()}?shards=1") as log, hasty(f"{lonely.url()}?operation_timeout=1") as impatient:
        log.append([source.frame(TOPIC, 3)])
        set_standby(lonely, "nobody")
        frames = [source.frame(TOPIC, 3)]
        for _ in range(2):
            with pytest.raises(durable_log.LogUnavailable):
                impatient.append(frames)
        assert log.state()[0].end == 3
        set_standby(lonely, "")

        def is_appended() -> bool:
            with contextlib.suppress(durable_log.LogUnavailable):
                return sum(log.append(frames)[:2]) == 3
            return False

        wait_until(is_appended, 60, "the append that was waited for")
        assert numbers(log, source.guid, TOPIC) == list(range(1, 7))


def test_who_ends_the_wait_for_a_standby_does_not_make_it_an_acknowledgement(lonely: PostgresServer) -> None:
    """PostgreSQL says that it has committed then, and warns."""
    with opened(f"{lonely.url()}?shards=1&operation_timeout=120") as log, ThreadPoolExecutor(1) as pool:
        source = Source()
        log.append([source.frame(TOPIC, 3)])
        set_standby(lonely, "nobody")
        appending = pool.submit(log.append, [source.frame(TOPIC, 3)])
        with lonely.client() as client:
            wait_until(
                lambda: client.execute(
                    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                ).fetchall(),
                60,
                "somebody to wait for the standby",
            )
        with pytest.raises(durable_log.LogUnavailable, match="perhaps not on its standby"):
            appending.result(60)
        set_standby(lonely, "")
        assert log.append([source.again(TOPIC, 4, 3)]).duplicates == 3


def test_a_shard_that_somebody_else_has_locked_is_waited_for_and_no_offset_is_skipped(
    postgres: PostgresServer, url: str
) -> None:
    source = Source()
    shard = durable_log.shard_of(TOPIC, 2)
    other = next(f"u{number}" for number in range(100) if durable_log.shard_of(f"u{number}", 2) != shard)
    with opened(url) as log, hasty(f"{url}&operation_timeout=0.5") as impatient, postgres.client() as client:
        log.append([source.frame(TOPIC, 3)])
        frame = source.frame(TOPIC, 3)
        with client.transaction():
            client.execute(f"SELECT FROM {schema_of(url)}.shards WHERE shard = {shard} FOR UPDATE")
            with pytest.raises(durable_log.LogUnavailable):
                impatient.append([frame])
            assert log.append([source.frame(other, 1)]).events == 1, "other shards do not wait"
        assert log.append([frame]).ends == {shard: 6}
        check_consistent(log)


def test_a_user_who_may_not_create_uses_a_log_that_is_there(postgres: PostgresServer, url: str) -> None:
    schema = schema_of(url)
    with postgres.client() as client:
        client.execute(f"CREATE ROLE {schema}_user LOGIN")
        theirs = url.replace("heliograph@", f"{schema}_user@")
        with pytest.raises(InvalidConfig, match="permission denied"):
            durable_log.open(theirs)
        durable_log.open(url).close()
        client.execute(f"GRANT USAGE ON SCHEMA {schema} TO {schema}_user")
        client.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {schema}_user")
    with opened(theirs) as log:
        assert log.append([Source().frame(TOPIC, 3)]).events == 3


def test_a_log_of_another_format_is_named_and_left_as_it_is(postgres: PostgresServer, url: str) -> None:
    durable_log.open(url).close()
    with postgres.client() as client:
        client.execute(f"UPDATE {schema_of(url)}.log SET format = 17")
        with pytest.raises(InvalidConfig, match="format 17; this release reads format 1 .* another schema"):
            durable_log.open(url)
        assert client.execute(f"SELECT format FROM {schema_of(url)}.log").fetchall() == [(17,)]


@pytest.mark.parametrize("change", ["frame = set_byte(frame, 9, 1)", "appended_ns = appended_ns + 1"])
def test_a_stream_that_is_damaged_is_told_and_the_rest_of_it_can_be_read(
    postgres: PostgresServer, url: str, change: str
) -> None:
    source, shard = Source(), durable_log.shard_of(TOPIC, 2)
    with opened(url) as log, postgres.client() as client:
        sent = [source.frame(TOPIC, 3) for _ in range(4)]
        log.append(sent)
        first = f"SELECT max(id) - 6 FROM {schema_of(url)}.frames"
        client.execute(f"UPDATE {schema_of(url)}.frames SET {change} WHERE id = ({first})")
        with pytest.raises(durable_log.LogCorrupt, match=f"shard {shard}, offsets 3 to 6"):
            log.read_stream(source.guid, TOPIC, 4, 6)
        assert log.read_stream(source.guid, TOPIC, 7, 12) == sent[2:]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("schema=Upper", "cannot be the schema"),
        ("schema=a;drop", "cannot be the schema"),
        ("sslmode=nonsense", "sslmode"),
        ("unknown=1", "'unknown' is no option; .*sslmode"),
    ],
)
def test_what_a_url_may_not_say_is_explained(postgres: PostgresServer, query: str, said: str) -> None:
    with pytest.raises((InvalidConfig, durable_log.LogUnavailable), match=said):
        durable_log.open(f"{postgres.url().replace('heliograph@', 'heliograph:secret@')}?{query}")


def test_a_url_has_options_of_the_log_and_of_the_library_side_by_side(postgres: PostgresServer) -> None:
    """And several hosts, of which the one that can be written to is taken."""
    place = f"postgres://heliograph@127.0.0.1:1,127.0.0.1:{postgres.port}/postgres"
    url = f"{place}?shards=3&sslmode=disable&schema=several_hosts&target_session_attrs=read-write"
    with opened(url) as log:
        assert log.shards == 3
        assert log.append([Source().frame(TOPIC, 3)]).events == 3
    with postgres.client() as client:
        assert client.execute("SELECT count(*) FROM several_hosts.frames").fetchall() == [(1,)]
