"""Options that earlier releases had.  The error for a file that still has one says what became of it."""

from __future__ import annotations

from collections.abc import Mapping


def _gone(constants: str, **given_by: str) -> dict[str, str]:
    """Name -> what its value follows from now; empty: a constant in the code, with its reason beside it."""
    return dict.fromkeys(constants.split(), "") | given_by


REMOVED: Mapping[str, Mapping[str, str]] = {
    "db": _gone(
        "transaction_writes_max transaction_bytes_max update_attempts_max publish_interval sweep_batch "
        "sweep_outbox tombstones_kept publish_queue_max publish_timeout compact_interval snapshot_portion "
        "snapshot_idle_timeout",
        retry_interval="retry_interval_max / 10, 0.5 at most",
        sweep_interval="outbox_age / 5, 1 at most",
        confirm_interval="outbox_age / 5, 1 at most",
        connect_timeout="operation_timeout, 5 at most",
        driver="the scheme of url",
    ),
    "db_etcd": _gone(
        "connections_idle_max",
        prefix="the URL",
        connections_max="db connections_max",
        tls_ca_file="db tls_ca_file",
        tls_cert_file="db tls_cert_file",
        tls_key_file="db tls_key_file",
    ),
    "db_postgres": _gone(
        "connections_idle_max snapshot_idle_timeout",
        schema="the URL",
        connections_max="db connections_max",
    ),
    "db_redis": _gone(
        "connections_idle_max snapshot_idle_timeout",
        prefix="the URL",
        connections_max="db connections_max",
        ssl_ca_file="db tls_ca_file",
        ssl_cert_file="db tls_cert_file",
        ssl_key_file="db tls_key_file",
        tls_ca_file="db tls_ca_file",
        tls_cert_file="db tls_cert_file",
        tls_key_file="db tls_key_file",
    ),
    "db_sqlite": _gone(
        "poll_interval_min poll_interval_max snapshot_time_max log_bytes_max",
    ),
    "discovery": _gone(
        "publishers_max",
        renew_interval="lease / 4",
        refresh_interval="lease / 12",
    ),
    "durability": _gone(
        "expiry_interval page_timeout chunk_bytes window_chunks held_samples_max read_publisher_caches "
        "missing_ranges_max ask_again_interval ask_again_attempts_max gather_bytes_max queue_events_max "
        "confirmed_streams_max terminate_period watchdog_interval watchdog_timeout heartbeat_factor "
        "align_timeout reconcile_interval combine_period_initial combine_period_operational",
        default_kind="kinds #=KIND",
        default_depth="depths #=N",
        default_lifespan="lifespans #=S",
    ),
    "groups": _gone(
        "find_leader_interval resend_interval rebalance_delay revoke_timeout renew_streams_interval "
        "members_max message_bytes_max commit_interval progress_interval batch_events_max window "
        "dead_letter_topic",
        queue_in_flight="2 * concurrency, 10 at least",
        retry_delay_max="60 * retry_delay",
        claim_time="2 * member_lease",
    ),
    "local_cache": _gone(
        "tombstones_max delta_portion slot_wait_max source_repairs_max delta_changes_max slot_lease source_timeout "
        "changes_queue_max",
        retry_interval="db retry_interval_max / 10",
        retry_interval_max="db retry_interval_max",
        snapshot_interval_min="2 * snapshot_jitter",
    ),
    "log": _gone(
        "record_bytes_max missing_ranges_max segment_cache_bytes stream_forget_age compact_objects_max "
        "connect_timeout maintenance_interval",
        driver="the scheme of url",
        frame_bytes_max="pubsub frame_bytes_max, at least 16 MiB",
        segment_events="5 * seal_events",
    ),
    "log_redis": _gone(
        "connections_max wait_slice streams_cached_max",
        username="the URL",
        password="the URL",
        ssl_ca_file="tls_ca_file",
    ),
    "log_sqlite": _gone(
        "poll_interval_min poll_interval_max journal_bytes_max",
    ),
    "longpoll": _gone(
        "command_timeout query_timeout send_wait_interval linger mailbox_bytes_max reply_frames_max "
        "reply_bytes_max command_batch_max subscriptions_max queries_max poll_grace sessions_max",
        tls="pubsub tls_ca_file and tls_cert_file",
        send_wait="pubsub send_wait",
        poll_interval="pubsub link_timeout / 3",
        session_timeout="pubsub link_timeout, 30 at least",
        connect_timeout="pubsub connect_timeout",
        retry_min="pubsub retry_interval_max / 10",
        retry_max="pubsub retry_interval_max",
        receive_queue_bytes_max="pubsub receive_queue_bytes_max / 4",
        tls_root_ca="pubsub tls_ca_file",
        tls_listen_certificate="pubsub tls_cert_file",
        tls_listen_private_key="pubsub tls_key_file",
        tls_connect_certificate="pubsub tls_cert_file",
        tls_connect_private_key="pubsub tls_key_file",
        tls_ca_file="pubsub tls_ca_file",
        tls_cert_file="pubsub tls_cert_file",
        tls_key_file="pubsub tls_key_file",
        tls_client_auth="pubsub tls_client_auth",
    ),
    "memory": _gone(
        "queue_bytes_max buses_max endpoints_max",
    ),
    "publisher_service": _gone(
        "window_bytes_max workers_remembered_max read_bytes_max drain_timeout hello_timeout watch_portion "
        "watch_note_interval outbox_shown_max window_events_max workers_max",
        reconnect_interval="pubsub retry_interval_max / 10",
        reconnect_interval_max="pubsub retry_interval_max",
        database_retry_interval="db retry_interval_max / 10",
        database_retry_interval_max="db retry_interval_max",
    ),
    "pubsub": _gone(
        "hello_rate_max catch_up_time clock_skew_max publishers_max questions_max confirm_interval "
        "confirm_interval_max history_hold_time history_read_timeout history_retry_interval "
        "history_objects_max batch_bytes_max send_queue_bytes_max history_source",
        repair="with_cache, where there is to be none",
        reply_bytes_max="frame_bytes_max / 2",
        retry_interval="retry_interval_max / 10, 0.1 at most",
        idle_time_limit="16 * max_idle_time",
        publisher_forget_time="20 * missed_hellos_max * max_idle_time",
        resync_interval_min="resync_jitter",
    ),
    "redis": _gone(
        "unanswered_max queries_max health_interval",
        username="the URL",
        password="the URL",
        ssl="url rediss://",
        ssl_ca_file="pubsub tls_ca_file",
        ssl_cert_file="pubsub tls_cert_file",
        ssl_key_file="pubsub tls_key_file",
        connect_timeout="pubsub connect_timeout",
        send_timeout="pubsub link_timeout / 6",
        operation_timeout="pubsub link_timeout / 6",
        answer_scopes="pubsub answer_scopes",
        reconnect_min="pubsub retry_interval_max / 10",
        reconnect_max="pubsub retry_interval_max",
        tls_check_hostname="the host of url is always checked",
        ssl_check_hostname="the host of url is always checked",
        tls_ca_file="pubsub tls_ca_file",
        tls_cert_file="pubsub tls_cert_file",
        tls_key_file="pubsub tls_key_file",
    ),
    "spark": _gone(
        "batch_events_max partition_events_max",
        bind_address="options spark.driver.host and spark.driver.bindAddress",
        shuffle_partitions="options",
        local_dir="options",
        executor_memory="options",
    ),
    "zenoh": _gone(
        "sessions_max sync_timeout sync_retry_min sync_retry_max sync_grace query_timeout block_wait "
        "queries_max publishers_max tls_verify_name congestion",
        connect_retry_min="pubsub retry_interval_max / 10",
        connect_retry_max="pubsub retry_interval_max",
        open_timeout="pubsub connect_timeout",
        protocol="pubsub tls_ca_file and tls_cert_file, else listen and endpoints",
        drop_wait="pubsub send_wait",
        send_wait="pubsub send_wait",
        lease="pubsub link_timeout / 3",
        answer_scopes="pubsub answer_scopes",
        receive_queue_bytes_max="pubsub receive_queue_bytes_max",
        tls_root_ca="pubsub tls_ca_file",
        tls_listen_certificate="pubsub tls_cert_file",
        tls_listen_private_key="pubsub tls_key_file",
        tls_connect_certificate="pubsub tls_cert_file",
        tls_connect_private_key="pubsub tls_key_file",
        tls_enable_mtls="pubsub tls_client_auth",
        tls_ca_file="pubsub tls_ca_file",
        tls_cert_file="pubsub tls_cert_file",
        tls_key_file="pubsub tls_key_file",
        tls_client_auth="pubsub tls_client_auth",
    ),
    "zmq": _gone(
        "send_wait_interval receive_hwm linger_ms barrier_timeout",
        connect_timeout="pubsub connect_timeout",
        reconnect_interval="pubsub retry_interval_max / 10",
        reconnect_interval_max="pubsub retry_interval_max",
        send_wait="pubsub send_wait",
        heartbeat_timeout="pubsub link_timeout",
        heartbeat_interval="pubsub link_timeout / 6",
        curve_public_key_file="it follows from the secret key",
        peer_bytes_max="peers_bytes_max / 16",
    ),
}
"""Group -> its removed options.  Remove a name from this table when it becomes an option of the group again."""
