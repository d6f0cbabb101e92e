"""Rows become events on the bus."""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Sequence

import msgspec

import pubsub_api
from spark_pipeline.errors import PipelineError
from spark_pipeline.targets.target import Ledger, Target, batch_guid

_SUFFIX = ".ledger"
_FLUSH_TIMEOUT_S = 60.0


class BusTarget(Target):
    """The ledger is a file next to the staged ones.  Each batch has a publisher of its own, whose GUID and numbers are
    the same when the batch comes again, so subscribers that received it drop it; they know a publisher that is gone for
    ``[pubsub] publisher_forget_time``."""

    def deliver(self, query: str, batch: int, names: Sequence[str], *, is_only: bool = False) -> None:
        file = self._file(query)
        ledger = _read(file)
        if ledger.delivered < batch:
            ledger = ledger.begin(batch, names)
            _write(file, ledger)
            with (
                pubsub_api.open(self.url) as session,
                session.publisher(name=f"spark/{query}", guid=batch_guid(query, batch)) as publisher,
            ):
                for portion in self.portions(ledger):
                    for topic, encoded in portion.items():
                        publisher.send_encoded(topic, encoded)
                publisher.flush(timeout_s=_FLUSH_TIMEOUT_S)
            if is_only:
                file.unlink()
            else:
                _write(file, Ledger(delivered=batch))
        self.discard(ledger, names)

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
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    with open(new, "wb") as stream:
        stream.write(msgspec.json.encode(ledger))
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(new, file)
