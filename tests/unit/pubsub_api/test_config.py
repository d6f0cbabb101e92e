"""The options: those of the Dragonflow specification keep names and defaults, and nothing impossible is accepted."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
import stat
from collections.abc import Callable, Iterator

import pytest
from oslo_config import cfg, types

import pubsub_api
from pubsub_api import config, errors

# The section "Configuration Options" of the specification, word for word.
SPECIFIED = {
    "enable_df_pub_sub": False,
    "pub_sub_driver": "zmq_pubsub_driver",
    "publishers_ips": ["$local_ip"],
    "publisher_port": 8866,
    "pub_sub_use_multiproc": True,
    "publisher_transport": "tcp",
    "publisher_bind_address": "*",
    "pub_sub_multiproc_driver": "zmq_pubsub_multiproc_driver",
    "publisher_multiproc_socket": "/var/run/zmq_pubsub/zmq-publisher-socket",
}

# Drivers have short names, the old ones being aliases; and a publisher is closed to the network until told otherwise.
# The third difference is not a default: when the socket's directory cannot be made, another one is used (see below).
DIFFERENT = {"pub_sub_driver": "zmq", "publisher_bind_address": "$local_ip"}

WriteConf = Callable[[str], pathlib.Path]


@pytest.fixture
def write_conf(tmp_path: pathlib.Path) -> WriteConf:
    def write(text: str) -> pathlib.Path:
        path = tmp_path / "heliograph.conf"
        path.write_text(text)
        return path

    return write


def shipped_options() -> Iterator[tuple[str, cfg.Opt]]:
    """``(group, option)`` of the bus and of every shipped driver."""
    for entry in importlib.metadata.entry_points(group="oslo.config.opts"):
        if entry.name.startswith("heliograph."):
            yield from ((str(group), option) for group, options in entry.load()() for option in options)


def test_the_options_of_the_specification_keep_their_defaults() -> None:
    defaults = {option.name: option.default for option in config.PUBSUB_OPTIONS}
    assert {name: defaults[name] for name in SPECIFIED} == {**SPECIFIED, **DIFFERENT}


def test_a_new_configuration_is_closed_to_the_network() -> None:
    conf = config.new_conf()
    assert conf.pubsub.local_ip == "127.0.0.1"
    assert conf.pubsub.publisher_bind_address == "127.0.0.1"
    assert conf.pubsub.publishers_ips == ["127.0.0.1"]


def test_the_defaults_do_not_contradict_each_other() -> None:
    config.check_combinations(config.new_conf())


@pytest.mark.parametrize("group", ["pubsub", "df"])
def test_the_old_group_name_is_understood(write_conf: WriteConf, group: str) -> None:
    settings = "pub_sub_driver = redis\npublishers_ips = 10.0.0.1, 10.0.0.2\npublisher_port = 9000\nlocal_ip = 10.0.0.3"
    conf = config.new_conf([write_conf(f"[{group}]\n{settings}\n")])
    assert conf.pubsub.pub_sub_driver == "redis"
    assert conf.pubsub.publishers_ips == ["10.0.0.1", "10.0.0.2"]
    assert conf.pubsub.publisher_port == 9000
    assert conf.pubsub.publisher_bind_address == "10.0.0.3"


def test_the_new_group_name_wins_over_the_old(write_conf: WriteConf) -> None:
    conf = config.new_conf([write_conf("[df]\npublisher_port = 1\n[pubsub]\npublisher_port = 2\n")])
    assert conf.pubsub.publisher_port == 2


def test_configurations_are_independent() -> None:
    first, second = config.new_conf(), config.new_conf()
    first.set_override("publisher_port", 1, group="pubsub")
    assert second.pubsub.publisher_port == 8866


def test_no_file_is_read_unless_it_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, write_conf: WriteConf
) -> None:
    write_conf("[pubsub]\npublisher_port = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.new_conf().pubsub.publisher_port == 8866


def test_later_files_win(tmp_path: pathlib.Path) -> None:
    files = [tmp_path / "first.conf", tmp_path / "second.conf"]
    for port, file in enumerate(files, 1):
        file.write_text(f"[pubsub]\npublisher_port = {port}\n")
    assert config.new_conf(files).pubsub.publisher_port == 2


@pytest.mark.parametrize(
    "setting",
    [
        "publisher_port = 65536",
        "publisher_port = -1",
        "publisher_port = http",
        "publisher_transport = carrier-pigeon",
        "pub_sub_use_multiproc = perhaps",
        "max_idle_time = 0",
        "max_idle_time = soon",
        "message_delay_window = -1",
        "frame_bytes_max = 1",
        "batch_events_max = 0",
        "missed_hellos_max = 1",
        "repair_attempts_max = 0",
        "streams_max = 1.5",
    ],
)
def test_a_value_out_of_bounds_is_refused_at_start(write_conf: WriteConf, setting: str) -> None:
    name = setting.partition(" ")[0]
    with pytest.raises(errors.InvalidConfig, match=name):
        config.new_conf([write_conf(f"[pubsub]\n{setting}\n")])


@pytest.mark.parametrize("text", ["publisher_port = 1", "[pubsub\n", "[pubsub]\njust words\n"])
def test_a_file_that_cannot_be_parsed_is_refused(write_conf: WriteConf, text: str) -> None:
    with pytest.raises(errors.InvalidConfig, match=r"heliograph\.conf"):
        config.new_conf([write_conf(text)])


def test_a_file_that_does_not_exist_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.InvalidConfig, match=r"absent\.conf"):
        config.new_conf([tmp_path / "absent.conf"])


def test_a_file_that_is_no_text_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "binary.conf").write_bytes(b"\xff\xfe[pubsub]\n")
    with pytest.raises(errors.InvalidConfig, match=r"binary\.conf: not UTF-8"):
        config.new_conf([tmp_path / "binary.conf"])
    with pytest.raises(errors.InvalidConfig, match="Is a directory"):
        config.new_conf([tmp_path])


def test_a_bad_value_is_told_with_its_file_and_nothing_else(write_conf: WriteConf) -> None:
    with pytest.raises(errors.InvalidConfig) as told:
        config.new_conf([name := write_conf("[pubsub]\nmax_idle_time = -1\n")])
    assert str(told.value) == f"[pubsub] max_idle_time: Should be greater than or equal to 0.01 (in {name})"


def test_times_that_depend_on_each_other_follow_from_one_option(write_conf: WriteConf) -> None:
    conf = config.new_conf([write_conf("[pubsub]\nmax_idle_time = 60\n")])
    assert (config.silence_timeout(conf), config.forget_time(conf)) == (180, 3600)


@pytest.mark.parametrize(("longest_s", "first_s"), [(0.5, 0.05), (2.0, 0.1), (60.0, 0.1)])
def test_the_first_wait_for_a_lost_link_follows_from_the_longest(longest_s: float, first_s: float) -> None:
    conf = config.new_conf()
    conf.set_override("retry_interval_max", longest_s, group=config.GROUP)
    assert config.retry_interval(conf) == pytest.approx(first_s)


def test_a_batch_leaves_room_for_one_event_more_in_the_smallest_frame() -> None:
    conf = config.new_conf()
    assert config.batch_bytes_max(conf) == 256 * 1024
    conf.set_override("frame_bytes_max", 65_536, group=config.GROUP)
    assert config.batch_bytes_max(conf) == 32_768


@pytest.mark.parametrize("key", ["", "k", "fifteen-letters"])
def test_a_key_that_could_be_guessed_is_refused(write_conf: WriteConf, key: str) -> None:
    conf = write_conf(f"[pubsub]\npub_sub_driver = memory\nhmac_key = {key}\n")
    with pytest.raises(errors.InvalidConfig, match="hmac_key has fewer than 16 bytes") as caught:
        pubsub_api.open(config_files=[conf])
    assert "fifteen-letters" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("max_idel_time = 3\n", r"\[pubsub\] max_idel_time, in .*, is no option: is max_idle_time meant\?"),
        ("xyzzy = 3\n", r"\[pubsub\] xyzzy, in .*, is no option\.$"),
        ("xyzzy = 3\nhistori = 5\n", r"xyzzy, in .*, is no option\. .*histori, .* no option: is history meant\?"),
        ("[memory]\nnames = x\n", r"\[memory\] names, in .*, is no option: is name meant"),
    ],
)
def test_a_misspelt_option_is_refused_with_the_one_that_is_meant(write_conf: WriteConf, text: str, reason: str) -> None:
    with pytest.raises(errors.InvalidConfig, match=reason):
        pubsub_api.open(config_files=[write_conf(f"[pubsub]\npub_sub_driver = memory\n{text}")])


@pytest.mark.parametrize(
    ("variable", "reason"),
    [
        ("OS_PUBSUB__HMAC_KEYY", "OS_PUBSUB__HMAC_KEYY, in the environment, is no option: is hmac_key meant?"),
        ("OS_REDIS__TLS_CA_FILE", "OS_REDIS__TLS_CA_FILE, in the environment, is no option"),
    ],
)
def test_a_variable_of_the_environment_that_would_have_no_effect_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, reason: str
) -> None:
    monkeypatch.setenv(variable, "a-secret-that-is-not-shown")
    with pytest.raises(errors.InvalidConfig, match=re.escape(reason)) as caught:
        pubsub_api.open("redis://127.0.0.1:6379/0")
    assert "a-secret" not in str(caught.value)


def test_variables_of_other_drivers_and_programs_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OS_REDIS__TLS_CA_FILE", "OS_NOVA__URL", "OS_PUBSUB_HMAC", "OS_PUBSUB__RETRY_INTERVAL_MAX"):
        monkeypatch.setenv(variable, "1")
    pubsub_api.open("memory://variables").close()


def test_options_of_other_programs_in_the_same_file_are_left_alone(write_conf: WriteConf) -> None:
    others = "[DEFAULT]\ndebug = true\n[df]\nremote_db_ip = 1\n[nova]\nurl = x\n[pubsub]\npub-sub-driver = memory\n"
    pubsub_api.open(config_files=[write_conf(others)]).close()


def test_the_key_is_kept_out_of_logs() -> None:
    [key] = [option for option in config.PUBSUB_OPTIONS if option.name == "hmac_key"]
    assert key.secret


def test_options_that_hold_a_secret_are_marked_as_secret() -> None:
    assert [f"[{group}] {option.name}" for group, option in shipped_options() if _is_open_secret(option)] == []


def _is_open_secret(option: cfg.Opt) -> bool:
    help_text = (option.help or "").lower()
    is_file = "file" in help_text.split(".")[0].split()  # where a key lies is no secret
    holds_secret = option.name.endswith(("key", "passphrase", "password", "secret", "token")) and not is_file
    return (holds_secret or "password@" in help_text) and not option.secret


def test_every_option_explains_itself() -> None:
    silent = [f"[{group}] {option.name}" for group, option in shipped_options() if not (option.help or "").strip()]
    assert silent == []


def test_every_number_has_bounds() -> None:
    boundless = [
        f"[{group}] {option.name}"
        for group, option in shipped_options()
        if isinstance(option.type, types.Integer | types.Float) and (option.type.min is None or option.type.max is None)
    ]
    assert boundless == []


def test_every_time_and_size_names_its_unit() -> None:
    nameless = [
        f"[{group}] {option.name}"
        for group, option in shipped_options()
        if (isinstance(option.type, types.Float) and "second" not in (option.help or "").lower())
        or ("bytes" in option.name and "byte" not in (option.help or "").lower())
    ]
    assert nameless == []


class TestMultiprocSocket:
    """The socket's directory: as configured, else the user's runtime directory, else below the temporary directory."""

    @pytest.fixture(autouse=True)
    def places(self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every place lies in the test's directory; a directory below ``file`` can be made by nobody, not even root."""
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
        monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))

    @staticmethod
    def conf(path: pathlib.Path) -> cfg.ConfigOpts:
        conf = config.new_conf()
        conf.set_override("publisher_multiproc_socket", str(path), group="pubsub")
        return conf

    def test_the_configured_directory_is_made_and_private(self, tmp_path: pathlib.Path) -> None:
        wanted = tmp_path / "run" / "socket"
        assert config.multiproc_socket(self.conf(wanted)) == wanted
        assert stat.S_IMODE(wanted.parent.stat().st_mode) == 0o700

    def test_an_existing_directory_is_used_as_it_is(self, tmp_path: pathlib.Path) -> None:
        wanted = tmp_path / "socket"
        mode = tmp_path.stat().st_mode
        assert config.multiproc_socket(self.conf(wanted)) == wanted
        assert tmp_path.stat().st_mode == mode

    def test_the_runtime_directory_comes_second(self, tmp_path: pathlib.Path) -> None:
        used = config.multiproc_socket(self.conf(tmp_path / "file" / "run" / "socket"))
        assert used == tmp_path / "runtime" / "heliograph" / "socket"
        assert stat.S_IMODE(used.parent.stat().st_mode) == 0o700

    def test_the_temporary_directory_comes_third(self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file" / "runtime"))
        used = config.multiproc_socket(self.conf(tmp_path / "file" / "run" / "socket"))
        assert used == tmp_path / "temporary" / f"heliograph-{os.getuid()}" / "socket"
        assert stat.S_IMODE(used.parent.stat().st_mode) == 0o700

    def test_every_process_of_a_user_finds_the_same_place(self, tmp_path: pathlib.Path) -> None:
        conf = self.conf(tmp_path / "file" / "run" / "socket")
        assert config.multiproc_socket(conf) == config.multiproc_socket(conf)

    def test_no_place_at_all_is_an_error(self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file" / "runtime"))
        monkeypatch.setenv("TMPDIR", str(tmp_path / "file" / "temporary"))
        with pytest.raises(errors.InvalidConfig, match="publisher_multiproc_socket"):
            config.multiproc_socket(self.conf(tmp_path / "file" / "run" / "socket"))
