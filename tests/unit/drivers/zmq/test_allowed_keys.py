"""The directory of allowed CURVE keys, while its files are being written."""

from __future__ import annotations

import logging
import pathlib

import pytest
import zmq
import zmq.auth

from heliograph_drivers.pubsub.zmq.access.allowed_keys import AllowedKeys
from pubsub_api.driver_kit.counting import Tally
from tests.helpers.waiting import wait_until


class Directory:
    """With the key of one client, and somebody who looks at it."""

    def __init__(self, path: pathlib.Path) -> None:
        zmq.auth.create_certificates(path, "client")
        self.file = path / "client.key"
        self.content = self.file.read_text()
        self.key = zmq.auth.load_certificate(self.file)[0]
        self.tally = Tally("keys_unreadable")
        self.allowed = AllowedKeys(path)

    def empty(self) -> None:
        """As ``cp`` does first."""
        self.file.write_text("")

    def look(self) -> bool:
        """Whether a key was taken away."""
        self.allowed.look(self.tally)
        return self.allowed.is_one_revoked

    @property
    def is_allowed(self) -> bool:
        return self.allowed.may_enter(self.key, self.tally)

    @property
    def unreadable(self) -> int:
        return self.tally.counts()["keys_unreadable"]


@pytest.fixture
def directory(tmp_path: pathlib.Path) -> Directory:
    return Directory(tmp_path)


def test_a_file_that_is_being_written_is_neither_broken_nor_taken_away(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    directory.empty()
    assert not directory.look()
    directory.file.write_text(directory.content)
    assert not directory.look()
    assert directory.is_allowed
    assert directory.unreadable == 0
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_the_key_of_a_file_that_is_being_written_lets_nobody_in(directory: Directory) -> None:
    directory.empty()
    directory.look()
    assert not directory.is_allowed


def test_a_new_file_that_is_being_written_lets_its_key_in_when_it_is_whole(directory: Directory) -> None:
    content = directory.content
    directory.file.unlink()
    assert directory.look()
    directory.empty()
    directory.look()
    directory.file.write_text(content)
    directory.look()
    assert directory.is_allowed
    assert directory.unreadable == 0


def test_a_file_that_stays_broken_is_told_once_and_its_key_is_taken_away(directory: Directory) -> None:
    directory.empty()
    assert not directory.look()
    wait_until(directory.look, what="the key to be taken away")
    assert directory.unreadable == 1
    directory.look()
    assert directory.unreadable == 1
    assert not directory.is_allowed


def test_a_key_that_is_replaced_while_its_file_was_broken_is_taken_away(directory: Directory) -> None:
    directory.empty()
    assert not directory.look()
    public, _secret = zmq.curve_keypair()
    directory.file.write_text(directory.content.replace(directory.key.decode(), public.decode()))
    assert directory.look()
    assert not directory.is_allowed


def test_a_file_that_is_removed_while_it_was_broken_takes_its_key_away(directory: Directory) -> None:
    directory.empty()
    assert not directory.look()
    directory.file.unlink()
    assert directory.look()
    assert directory.unreadable == 0
