"""Finding and configuring databases: each way it can go wrong is one typed error that says what to do."""

from __future__ import annotations

import contextlib
import importlib.metadata
import pathlib
import subprocess
import sys
import textwrap

import pytest

from nb_api import loading
from nb_api.core import checks
from nb_api.errors import DbError, InvalidObject
from pubsub_api import errors
from pubsub_api.config import new_conf
from tests.helpers.paths import ROOT


def test_an_unknown_scheme_is_answered_with_the_names_that_exist() -> None:
    with pytest.raises(errors.DriverNotFound, match=r"'oracle'; available: .*sqlite"):
        loading.build_db("oracle://127.0.0.1")


@pytest.mark.parametrize("url", ["", "heliograph.db", "/var/lib/heliograph.db", "sqlite:", "redis://host:port"])
def test_a_url_that_names_no_database_is_refused(url: str) -> None:
    with pytest.raises(errors.InvalidConfig):
        loading.build_db(url)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_who_gives_the_address_of_an_etcd_in_its_former_way_is_told_the_new_one(scheme: str) -> None:
    with pytest.raises(errors.DriverNotFound, match="An etcd is etcd://host:port/prefix, with TLS etcds://"):
        loading.build_db(f"{scheme}://host:2379/prefix")


def test_a_password_is_not_shown() -> None:
    with pytest.raises(errors.InvalidConfig) as caught:
        loading.build_db("postgresql://user:secret@host:port/db")
    assert "secret" not in str(caught.value)


def test_the_url_comes_from_the_configuration(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "heliograph.conf"
    file.write_text(f"[db]\nurl = sqlite://{tmp_path}/configured.db\nconnections_max = 33\n")
    with contextlib.closing(loading.open_db(conf=new_conf([file]))) as db:
        assert db.conf.db.connections_max == 33
    assert (tmp_path / "configured.db").exists()


@pytest.mark.parametrize("line", ["connections_max = 0", "value_bytes_max = 7", "connections_max = many"])
def test_a_value_out_of_bounds_is_refused(tmp_path: pathlib.Path, line: str) -> None:
    file = tmp_path / "heliograph.conf"
    file.write_text(f"[db]\nurl = sqlite://{tmp_path}/a.db\n{line}\n")
    with pytest.raises(errors.InvalidConfig, match=line.partition(" ")[0]):
        loading.open_db(conf=new_conf([file]))


def test_a_value_out_of_bounds_of_the_drivers_group_is_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "heliograph.conf"
    file.write_text("[db_sqlite]\nsynchronous = off\n")
    with pytest.raises(errors.InvalidConfig, match="synchronous"):
        loading.open_db(f"sqlite://{tmp_path}/a.db", new_conf([file]))


def test_certificates_that_would_encrypt_nothing_are_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "heliograph.conf"
    file.write_text("[db]\ntls_ca_file = ca.pem\n")
    for url in (f"sqlite://{tmp_path}/a.db", "redis://127.0.0.1:1/0"):
        with pytest.raises(errors.InvalidConfig, match="tls_ca_file is set, but .* makes no use of it"):
            loading.build_db(url, new_conf([file]))


def test_changes_can_be_kept_out_of_the_outbox(tmp_path: pathlib.Path) -> None:
    with contextlib.closing(loading.open_db(f"sqlite://{tmp_path}/a.db", with_outbox=False)) as db:
        db.create("t", "k", 1, topic="t")
        assert db.unpublished() == []


def test_every_extra_that_an_entry_point_names_exists() -> None:
    extras = set(importlib.metadata.metadata("heliograph").get_all("Provides-Extra") or ())
    named = {extra for entry in importlib.metadata.entry_points(group=loading.NAMESPACE) for extra in entry.extras}
    assert named
    assert named <= extras


def test_a_missing_library_is_answered_with_the_extra() -> None:
    script = """
        import sys
        sys.modules["psycopg"] = None    # what Python looks at first: the library cannot be imported
        from nb_api import loading
        from pubsub_api import errors
        try:
            loading.load_db_driver("postgres")
        except errors.DriverDependencyMissing as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'heliograph[postgres]'" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("names", ["port", ["port", ""], ["port", 7], [b"port"]])
def test_a_selection_of_bad_tables_is_refused(names: list[str]) -> None:
    with pytest.raises(InvalidObject):
        checks.TopicSelection(names)


def test_a_selection_of_nothing_differs_from_one_of_everything() -> None:
    assert checks.TopicSelection().selects("a", "b")
    assert checks.TopicSelection(None, None).selects("a", "b")
    assert not checks.TopicSelection([]).selects("a", "b")
    assert not checks.TopicSelection(None, []).selects("a", "b")


def test_values_of_other_programs_are_typed_errors() -> None:
    for bad in (b"", b"\xc1", b"\x91" * 10_000, b"\xa1\xff"):
        with pytest.raises(DbError, match="no msgpack"):
            checks.decode_value(bad)
