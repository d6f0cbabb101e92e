"""The ``[longpoll]`` options: URLs, addresses, policies, and what is refused with its reason."""

from __future__ import annotations

import pytest

from heliograph_drivers.pubsub.longpoll.config import Policies, check_address, read_settings
from heliograph_drivers.pubsub.longpoll.core.mailbox import MailboxPolicy
from pubsub_api import loading
from pubsub_api.errors import InvalidConfig
from tests.helpers.paths import TLS


def test_a_url_sets_address_and_options() -> None:
    conf = loading.conf_from_url("longpoll://10.0.0.7:7000?link_timeout=7.5&latest_topics=a/%23,b")
    settings = read_settings(conf)
    assert (settings.bind_host, settings.port) == ("10.0.0.7", 7000)
    assert settings.listen_addresses == ("longpoll://10.0.0.7:7000",)
    assert settings.link.poll_interval_s == settings.publisher.poll_interval_s == 2.5
    assert settings.publisher.policy_of("a/x") is MailboxPolicy.LATEST
    assert settings.publisher.policy_of("c") is MailboxPolicy.LOSSLESS


def test_every_interface_is_bound_but_not_listened_to() -> None:
    settings = read_settings(loading.conf_from_url("longpoll://0.0.0.0:7000"))
    assert settings.bind_host == "0.0.0.0"
    assert settings.public_host == "127.0.0.1"
    assert settings.listen_addresses == ("longpoll://127.0.0.1:7000",)


def test_a_session_outlives_the_longest_wait_before_its_link_is_tried_again() -> None:
    settings = read_settings(loading.conf_from_url("longpoll://h:1?link_timeout=0.3&retry_interval_max=90"))
    assert settings.publisher.session_timeout_s > settings.link.retry_max_s == 90


def test_ports_chosen_at_run_time_are_nothing_to_listen_to() -> None:
    assert loading.build_driver(loading.conf_from_url("longpoll://127.0.0.1:0")).listen_addresses() == []


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("longpoll://", "longpoll://host:port"),
        ("longpoll://user@host:1", "longpoll://host:port"),
        ("longpoll://host:1/path", "longpoll://host:port"),
        ("longpoll://host:99999", "range"),
        ("longpoll://host:1?nonsense=1", "is no option"),
        ("longpoll://host:1?link_timeout=1&link_timeout=2", "given twice"),
        ("longpoll://host:1?link_timeout=never", "link_timeout"),
        ("longpoll://host:1?link_timeout=-1", "link_timeout"),
        ("longpoll://host:1?latest_topics=a//b", "empty level"),
        ("longpoll://host:1?latest_topics=a&lossy_topics=a", "in latest_topics and in lossy_topics"),
        ("longpoll://host:1?tls_client_auth=true", "needs tls_ca_file"),
        ("longpoll://host:1?tls_ca_file=/nowhere", "cannot be read"),
        (f"longpoll://host:1?tls_cert_file={TLS}/server.pem", "go together"),
        (f"longpoll://host:1?tls_key_file={TLS}/client-key.pem", "go together"),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(url: str, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        loading.build_driver(loading.conf_from_url(url))


def test_a_socket_file_is_refused() -> None:
    conf = loading.conf_from_url("longpoll://127.0.0.1:1")
    conf.set_override("publisher_transport", "ipc", group="pubsub")
    with pytest.raises(InvalidConfig, match="not for longpoll"):
        read_settings(conf)


def test_a_publisher_that_must_encrypt_needs_a_certificate() -> None:
    driver = loading.build_driver(loading.conf_from_url(f"longpoll://127.0.0.1:0?tls_ca_file={TLS}/ca.pem"))
    with pytest.raises(InvalidConfig, match="tls_cert_file"):
        driver.get_publisher().initialize(lambda _report: None)


@pytest.mark.parametrize("address", ["longpoll://h:1", "longpoll://[::1]:65535", "longpoll://10.0.0.1:8866"])
def test_addresses(address: str) -> None:
    assert f"longpoll://{check_address(address)}" == address


@pytest.mark.parametrize(
    "address", ["", "h:1", "tcp://h:1", "longpoll://h", "longpoll://h:0", "longpoll://h:65536", "longpoll://h:1/x"]
)
def test_bad_addresses(address: str) -> None:
    with pytest.raises(InvalidConfig, match="not an address"):
        check_address(address)


def test_the_first_list_wins_and_control_is_never_touched() -> None:
    policies = Policies(["a/b"], ["a/#", "#"])
    assert policies("a/b") is MailboxPolicy.LATEST
    assert policies("a/c") is MailboxPolicy.LOSSY
    assert policies("$control") is MailboxPolicy.LOSSLESS


def test_secrets_are_not_shown() -> None:
    files = {"tls_cert_file": "server.pem", "tls_key_file": "server-key.pem"}
    url = "longpoll://127.0.0.1:0?" + "&".join(f"{name}={TLS}/{file}" for name, file in files.items())
    settings = read_settings(loading.conf_from_url(url))
    assert b"PRIVATE" in (settings.tls.key_file or b"") if settings.tls else False
    assert "PRIVATE" not in repr(settings)
