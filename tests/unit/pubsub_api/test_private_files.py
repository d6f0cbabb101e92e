"""Files of ours are made for their user alone, whatever the umask, and are not made where others could replace them."""

from __future__ import annotations

import ast
import contextlib
import os
import pathlib
import stat
from collections.abc import Callable, Iterator

import pytest

import durable_log
from durability_service.core.effects import Level
from durability_service.serving.tracing import Tracer
from durability_service.storage.store import SampleStore
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.sources import Source
from nb_api.cache.snapshot_files import complete
from publisher_service.errors import JournalError
from publisher_service.journal import Journal
from publisher_service.ownership import Ownership
from pubsub_api import config
from pubsub_api.errors import UnsafeFile
from pubsub_api.runtime import files
from pubsub_api.runtime.sockets import socket_file
from tests.helpers.nb_tools import open_nb, sqlite_url
from tests.helpers.paths import ROOT

SOMEBODY = 4321
"""A user that is neither root nor us."""
PRODUCT = (
    "pubsub_api", "nb_api", "durable_log", "publisher_service", "durability_service", "shared_subscriptions", "drivers",
    "spark_pipeline", "heliograph",
)  # fmt: skip
NOT_OURS = {
    "durable_log/testing/log_conformance/sealing.py": "damages files that are there",
    "heliograph/main.py": "opens /dev/null",
    "heliograph/pipeline/audit.py": "a report, where and as the user wants it",
    "heliograph/demo/recording.py": "a picture, where and as the user wants it",
    "heliograph/demo/runner.py": "in a temporary directory of its own",
    "heliograph/option_reference.py": "a page of the documentation, which everyone may read",
    "pubsub_api/runtime/files.py": "the one that does it right",
}


@pytest.fixture(autouse=True)
def careless_umask() -> Iterator[None]:
    """One that takes nothing away: what a file may be is then what it was made with."""
    former = os.umask(0)
    yield
    os.umask(former)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "run"
    path.mkdir(mode=0o755)
    return path


def mode_of(path: pathlib.Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def make_journal(folder: pathlib.Path) -> None:
    journal = Journal(folder / "journal", bytes_max=65536)
    with journal:
        journal.start(b"g" * 16, journal.recover())


def make_lock(folder: pathlib.Path) -> None:
    Ownership(folder / "socket").release()


def make_store(folder: pathlib.Path) -> None:
    with SampleStore(folder / "store.db") as store:
        store.snapshot(folder)


def make_trace(folder: pathlib.Path) -> None:
    Tracer(Level.INFO, str(folder / "trace"), "node").close()


def make_database(folder: pathlib.Path) -> None:
    open_nb(sqlite_url(folder), None).close()


def make_log(folder: pathlib.Path) -> None:
    durable_log.open(f"sqlite://{folder}/log.db?shards=1").close()


def make_socket(folder: pathlib.Path) -> None:
    socket_file.listen(folder / "socket").close()


MAKERS = [make_journal, make_lock, make_store, make_trace, make_database, make_log, make_socket]
Maker = Callable[[pathlib.Path], None]


@pytest.mark.parametrize("make", MAKERS)
def test_only_the_user_may_open_what_is_made(make: Maker, folder: pathlib.Path) -> None:
    make(folder)
    made = list(folder.rglob("*"))
    assert made
    assert {path.name: oct(mode_of(path)) for path in made if mode_of(path) != 0o600} == {}


def test_the_group_may_read_segments_and_nobody_else(folder: pathlib.Path) -> None:
    with contextlib.closing(durable_log.open(f"sqlite://{folder}/log.db?shards=1")) as log:
        assert isinstance(log, SegmentedLog)
        log.append([Source().frame("t", 3)])
        [segment] = Sealer(log).seal(0)
        path = pathlib.Path(segment.path)
        assert mode_of(path) == 0o640
        assert mode_of(path.parent) == mode_of(pathlib.Path(log.segment_store.place)) == 0o750


def test_the_group_may_read_snapshots_and_nobody_else(folder: pathlib.Path) -> None:
    with open_nb(sqlite_url(folder), None) as nb:
        nb.create("port", "p1", 1, topic="t")
        complete(folder / "snapshot", nb.db)
    made = {path.name: oct(mode_of(path)) for path in (folder / "snapshot").rglob("*")}
    assert made == {"manifest.json": "0o640", "corrections": "0o750", "corrections.parquet": "0o640"}


@pytest.mark.parametrize("make", MAKERS)
def test_a_directory_in_which_everybody_may_replace_files_is_refused(make: Maker, folder: pathlib.Path) -> None:
    folder.chmod(0o777)
    with pytest.raises((UnsafeFile, JournalError), match="all users may replace files"):
        make(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("make", MAKERS)
def test_the_directory_of_another_user_is_refused(make: Maker, folder: pathlib.Path) -> None:
    os.chown(folder, SOMEBODY, -1)
    with pytest.raises((UnsafeFile, JournalError), match=f"belongs to user {SOMEBODY}"):
        make(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("make", MAKERS)
def test_a_sticky_directory_that_everybody_may_write_is_accepted(make: Maker, folder: pathlib.Path) -> None:
    folder.chmod(0o1777)
    make(folder)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (make_journal, "journal.0"), (make_lock, "socket.lock"), (make_store, "store.db"), (make_trace, "trace"),
        (make_log, "log.db"),
    ],
)  # fmt: skip
def test_links_are_not_followed(make: Maker, name: str, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (folder / name).symlink_to(victim)
    with pytest.raises((UnsafeFile, JournalError), match="symbolic link"):
        make(folder)
    assert victim.read_bytes() == b"precious"


def fill(journal: Journal) -> None:
    for number in range(1, 100):
        journal.append(b"w" * 16, number, 1, [("t", [b"x"])], b"p" * 500)


def test_a_link_put_in_place_of_the_next_journal_file_is_not_followed(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    with Journal(folder / "j", bytes_max=4096) as journal:
        journal.start(b"g" * 16, journal.recover())
        [written] = folder.iterdir()
        (folder / ("j.1" if written.name == "j.0" else "j.0")).symlink_to(victim)
        with pytest.raises(JournalError, match="symbolic link"):
            fill(journal)
    assert victim.read_bytes() == b"precious"


def test_an_older_store_that_others_could_read_is_closed_to_them(folder: pathlib.Path) -> None:
    make_store(folder)
    (folder / "store.db").chmod(0o644)
    make_store(folder)
    assert mode_of(folder / "store.db") == 0o600


def test_a_database_that_its_owner_shares_stays_shared(folder: pathlib.Path) -> None:
    with open_nb(sqlite_url(folder), None) as nb:
        nb.create("port", "p1", 1, topic="t")
    [path] = [path for path in folder.iterdir() if path.suffix == ".db"]
    path.chmod(0o660)
    open_nb(sqlite_url(folder), None).close()
    assert mode_of(path) == 0o660


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(folder: pathlib.Path) -> None:
    path = folder / "file"
    path.write_bytes(b"planted")
    os.chown(path, SOMEBODY, -1)
    for attempt in (lambda: files.open_private(path, os.O_RDWR), lambda: files.read_private(path)):
        with pytest.raises(UnsafeFile, match=f"belongs to user {SOMEBODY}"):
            attempt()


def test_what_is_no_regular_file_is_refused(folder: pathlib.Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(UnsafeFile, match="no regular file"):
        files.open_private(folder / "pipe", os.O_RDONLY)


def test_a_file_is_replaced_whole_and_privately(folder: pathlib.Path) -> None:
    for content in (b"first", b"second"):
        files.replace_private(folder / "file", content)
        assert files.read_private(folder / "file") == content
    assert mode_of(folder / "file") == 0o600
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_a_run_directory_that_everybody_may_write_is_refused(folder: pathlib.Path) -> None:
    conf = config.new_conf()
    conf.set_override("publisher_multiproc_socket", str(folder / "socket"), group="pubsub")
    assert config.multiproc_socket(conf) == folder / "socket"
    folder.chmod(0o777)
    with pytest.raises(UnsafeFile, match="all users may replace files"):
        config.multiproc_socket(conf)


# -- nobody makes files in another way


def makes_files(source: str) -> list[int]:
    """Lines that make files by themselves."""
    return [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and _makes_file(node)]


def _makes_file(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if name in ("os.open", "os.mknod"):
        return "O_CREAT" in ast.unparse(call) or name == "os.mknod"
    if name.endswith((".write_text", ".write_bytes", ".touch")):
        return not name.endswith("._lease.touch")
    if name == "open" or name.endswith(".open"):
        modes = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        return any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax") for mode in modes if mode)
    return False


def test_nobody_makes_files_in_another_way() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for package in PRODUCT
        for path in (ROOT / package).rglob("*.py")
        if str(path.relative_to(ROOT)) not in NOT_OURS
        for line in makes_files(path.read_text())
    }
    assert found == set(), "use pubsub_api.runtime.files"


@pytest.mark.parametrize(
    "statement", ["open(path, 'wb')", "path.open('a')", "os.open(p, os.O_CREAT)", "path.write_text('x')"]
)
def test_the_search_finds(statement: str) -> None:
    assert makes_files(statement) == [1]
