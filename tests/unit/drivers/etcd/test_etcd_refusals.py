"""What etcd, its gateway and proxies say, and what it means: whose fault it is, and whether to try again."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import pytest

from heliograph_drivers.db.etcd import config
from heliograph_drivers.db.etcd.config import EtcdSettings
from heliograph_drivers.db.etcd.refusals import Compacted, StorageLimitReached, read_refusal, refusal_error
from nb_api import config as db_config
from nb_api.errors import DbError, DbUnavailable
from pubsub_api.config import new_conf
from pubsub_api.errors import InvalidConfig, LimitReached


def read_all() -> EtcdSettings:
    conf = new_conf()
    conf.register_opts(db_config.OPTIONS, group=db_config.GROUP)
    conf.register_opts(config.OPTIONS, group=config.GROUP)
    return config.read_settings(conf, urlsplit("etcd://me:secret@host:2379,[::1]:2379/prefix"))


SETTINGS = read_all()


@pytest.mark.parametrize(
    ("code", "message", "expected", "is_untouched"),
    [
        (11, "etcdserver: mvcc: required revision has been compacted", Compacted, False),
        (14, "etcdserver: no leader", DbUnavailable, True),
        (14, "etcdserver: rpc not supported for learner", DbUnavailable, True),
        (14, "etcdserver: leader changed", DbUnavailable, False),
        (14, "etcdserver: request timed out", DbUnavailable, False),
        (8, "etcdserver: too many requests", DbUnavailable, False),
        (2, "OK: HTTP status code 200; transport: missing content-type field", DbUnavailable, False),
        (13, "server closed the stream without sending trailers", DbUnavailable, False),
        (2, "raft: stopped", DbUnavailable, False),
        (1, "context canceled", DbUnavailable, False),
        (2, "etcdserver: something else", DbError, False),
        (3, "etcdserver: request is too large", LimitReached, False),
        (8, "etcdserver: mvcc: database space exceeded", StorageLimitReached, False),
        (7, "etcdserver: permission denied", InvalidConfig, False),
        (3, "etcdserver: authentication failed, invalid user ID or password", InvalidConfig, False),
        (3, "etcdserver: user name is empty", InvalidConfig, False),
        (9, "etcdserver: authentication is not enabled", InvalidConfig, False),
        (3, "etcdserver: key is not provided", DbError, False),
    ],
)
def test_refusals(code: int, message: str, expected: type[Exception], is_untouched: bool) -> None:
    plain = json.dumps({"error": message, "code": code, "message": message}).encode()
    wrapped = json.dumps({"error": {"grpc_code": code, "code": code, "message": message}}).encode()
    for body in (plain, wrapped):
        refusal = read_refusal(body)
        assert type(refusal_error(refusal, SETTINGS)) is expected
        assert refusal.is_untouched is is_untouched
        assert "secret" not in str(refusal_error(refusal, SETTINGS))


@pytest.mark.parametrize(
    ("code", "message"), [(16, "etcdserver: invalid auth token"), (3, "etcdserver: revision of auth store is old")]
)
def test_tokens_that_are_refused(code: int, message: str) -> None:
    assert read_refusal(json.dumps({"code": code, "message": message}).encode()).is_about_token


def test_a_proxy_that_cannot_reach_etcd() -> None:
    assert type(refusal_error(read_refusal(b"<html>Bad Gateway</html>", 502), SETTINGS)) is DbUnavailable
    assert type(refusal_error(read_refusal(b"<html>Not Found</html>", 404), SETTINGS)) is DbError


def test_settings_do_not_show_the_password() -> None:
    assert SETTINGS.address == "etcd://host:2379,[::1]:2379/prefix"
    assert "secret" not in f"{SETTINGS} {SETTINGS!r}"
