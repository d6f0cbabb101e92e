"""Rows become events on the bus."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Sequence

import msgspec

import pubsub_api
from pubsub_api.errors import NotSupported
from pubsub_api.runtime.files import make_directory, replace_private
from pubsub_api.runtime.plugins import without_password
from pubsub_api.settings import frame_settings
from spark_pipeline.errors import PipelineError
from spark_pipeline.writing.targets.target import Ledger, MicroBatch, Target

_SUFFIX = ".ledger"
_FLUSH_TIMEOUT_S = 60.0


class BusTarget(Target):
    """The URL of a bus, or the path of a configuration file.

    The ledger is a file next to the staged ones.  Each batch has a publisher of its own, whose GUID and numbers are
    the same when the batch comes again, so subscribers that received it drop it; they know a publisher that is gone for
    five minutes, unless ``[pubsub] max_idle_time`` is changed.

    Where publishers own their address, subscribers would have to find each batch's publisher before it ends, and most
    do not.  So those drivers are refused.
    """

    def __init__(self, url: str, directory: str) -> None:
        super().__init__(url, directory)
        self._is_file = "://" not in url and pathlib.Path(url).is_file()
        with self._open() as session:
            if session.capabilities.bind_based:
                raise NotSupported(
                    f"at {without_password(url)} subscribers connect to each publisher, and a batch is over before "
                    'they have: write to a bus with a server in the middle (redis, or zenoh in mode "client"), or to '
                    'a "log" or a "db" that a publisher of your own follows'
                )
            self.event_bytes_max = frame_settings(session.conf).event_bytes_max

    def deliver(self, batch: MicroBatch, names: Sequence[str], *, is_only: bool = False) -> None:
        file = self._file(batch.query)
        ledger = _read(file).begin(batch, names)
        if ledger is not None:
            _write(file, ledger)
            with (
                self._open() as session,
                session.publisher(name=f"spark/{batch.query}", guid=batch.guid) as publisher,
            ):
                for portion in self.portions(ledger):
                    for topic, encoded in portion.by_topic():
                        publisher.send_encoded(topic, encoded)
                publisher.flush(timeout_s=_FLUSH_TIMEOUT_S)
            if is_only:
                file.unlink()
            else:
                _write(file, ledger.end())
        self.discard(ledger, names)

    def _open(self) -> pubsub_api.Session:
        return pubsub_api.open(config_files=[self.url]) if self._is_file else pubsub_api.open(self.url)

    def named(self) -> set[str]:
        files = pathlib.Path(self.directory).glob(f"*{_SUFFIX}")
        return {name for file in files for name in _read(file).files}

    def _file(self, query: str) -> pathlib.Path:
        # A query's name may hold anything; the name of a file may not.
        mark = hashlib.blake2b(query.encode(), digest_size=16).hexdigest()
        return pathlib.Path(self.directory, f"{mark}{_SUFFIX}")


def _read(file: pathlib.Path) -> Ledger:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Ledger)
    except FileNotFoundError:
        return Ledger()
    except msgspec.MsgspecError as error:
        raise PipelineError(f"the ledger {file} cannot be read: {error}") from error


def _write(file: pathlib.Path, ledger: Ledger) -> None:
    make_directory(file.parent)
    replace_private(file, msgspec.json.encode(ledger))
