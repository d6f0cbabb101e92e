"""Which systems take a change from a database to its followers: Heliograph's, and what is made by hand."""

from __future__ import annotations

from bench.change_ends import BROKER_IS_DATABASE, ChangeSystem
from bench.ours_nb import CacheFollower, PutWriter, SqliteWriter
from bench.raw_etcd import PutWriter as EtcdWriter
from bench.raw_etcd import WatchFollower
from bench.raw_ovsdb import IdlFollower, IdlWriter
from bench.raw_postgres import ListenFollower, NotifyWriter, TunedNotifyWriter

ZMQ = "zmq://127.0.0.1:0"

LISTEN = ChangeSystem("LISTEN/NOTIFY", "postgres", NotifyWriter, ListenFollower)
LISTEN_TUNED = ChangeSystem(f"{LISTEN.name}, tuned", "postgres", TunedNotifyWriter, ListenFollower)
WATCH = ChangeSystem("etcd put and watch", "etcd", EtcdWriter, WatchFollower)
IDL = ChangeSystem("OVSDB with the IDL", "ovsdb", IdlWriter, IdlFollower)
PEERS = (LISTEN, LISTEN_TUNED, WATCH, IDL)

POSTGRES = ChangeSystem("heliograph postgres+zmq", "postgres", PutWriter, CacheFollower, ZMQ, LISTEN.name)
ETCD = ChangeSystem("heliograph etcd+zmq", "etcd", PutWriter, CacheFollower, ZMQ, WATCH.name, together_max=40)
SQLITE = ChangeSystem("heliograph sqlite+zmq", "sqlite", PutWriter, CacheFollower, ZMQ, IDL.name)
REDIS = ChangeSystem("heliograph redis", "redis", PutWriter, CacheFollower, BROKER_IS_DATABASE)
OURS = (POSTGRES, ETCD, SQLITE, REDIS)

SQLITE_ALONE = ChangeSystem("sqlite alone", "sqlite", SqliteWriter, None)
SQLITE_UNFOLLOWED = ChangeSystem("heliograph sqlite+zmq, unfollowed", "sqlite", PutWriter, None, ZMQ)

ALL = (LISTEN_TUNED, POSTGRES, LISTEN, ETCD, WATCH, SQLITE, IDL, REDIS)
"""Each next to what it is compared with, so that both meet the same machine."""
