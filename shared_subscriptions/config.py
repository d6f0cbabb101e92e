"""The ``[groups]`` option group, and how the settings of the protocol come from it."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg

from pubsub_api.config import check_group
from pubsub_api.runtime.options import DAY_S, MIB, advanced, count, flag, seconds, text
from shared_subscriptions.core.declaration import LANES_MAX
from shared_subscriptions.core.settings import BorrowerSettings, DeliverySettings, LeaderSettings, LeaseSettings

GROUP = "groups"

OPTIONS: Sequence[cfg.Opt] = (
    seconds("member_lease", 5.0, 0.2, 600.0,
            "The streams of a member that was not heard of for this long go to others. It stops delivering before. "
            "Another member becomes leader when the leader's record has not changed for twice this."),
    count("concurrency", 1, 1, 256, "Threads of a member that call the user. Order is kept within topic and key."),
    text("bind_address", "127.0.0.1", "Address at which a leader can be reached by members. Open it to the network "
         "when members run on several hosts."),
    *advanced(
        count("attempts_max", 5, 0, 1_000_000,
              "Deliveries of one event before it goes to the dead letters. 0: without end."),
        text("member_name", "", "Name of this member. One that comes back under its name gets its streams back. Empty: "
             "a new name at every start."),
        seconds("handler_timeout", 300.0, 0.0, 604_800.0,
                "An event that is with the program for longer than this is taken back and delivered again; what the "
                "program says of it later is refused. A member all of whose threads hang leaves its groups until one "
                "returns. 0: never."),
        seconds("unsubscribe_timeout", 5.0, 0.0, 3600.0,
                "How long the events that are with the user may hold up the end of a subscription."),
        seconds("retry_delay", 1.0, 0.0, DAY_S,
                "Wait before the second attempt; later waits double, up to sixty times this."),
        count("lanes", 1, 1, LANES_MAX, "Streams that each shard is divided into when a $shared group is declared, by "
              "topic and key. More members than the log has shards need more than one."),
        text("advertised_address", "", "Address that a leader tells members, when it is another than bind_address."),
        flag("record", True, "The leader's process records the events of the group's topics from the bus into the log. "
             "Events are kept once, however many record them."),
    ),
)  # fmt: skip

CLAIM_LEASES = 2.0
"""Another member becomes leader after so many ``member_lease``: with fewer than one and a half it would come before the
leases that the old one gave have ended."""
COMMIT_INTERVAL_S = 0.5
"""How often a leader stores progress in the log.  A crash of the leader repeats what was acknowledged since."""
PROGRESS_INTERVAL_S = 0.2
"""How often a member reports progress.  A crash of the member repeats what was acknowledged since."""
BATCH_EVENTS_MAX = 1000
"""Most events in one call of the user: more make no call cheaper, and hold up the end of a subscription."""
WINDOW = 20_000
"""Events of one partition that a member has read and not acknowledged.  Then it reads no more of it."""
QUEUE_IN_FLIGHT_MIN = 10
"""Events of a $queue group that are with a program at once which acknowledges by itself, or two for each thread: enough
to be busy while acknowledgements travel, and few enough that they do not wait here while another member is idle."""
DEAD_LETTER_TOPIC = "dead-letter/{group}"
"""Topic of the log that events go to which have used up their attempts."""
FIND_LEADER_INTERVAL_S = 1.0
"""How often a member that has no leader asks for one: a read of the log."""
RESEND_INTERVAL_S = 1.0
"""How long grant, revoke and revoked wait before they are repeated."""
REBALANCE_DELAY_S = 0.1
"""Partitions are assigned again this long after the first of several members has come or gone."""
REVOKE_TIMEOUT_S = 10.0
"""How long the events that are with the user may hold up a partition that goes to another member."""
RENEW_PARTITIONS_INTERVAL_S = 0.5
"""How often a leader looks for new partitions and for wishes of operators: a read of the log."""
MEMBERS_MAX = 10_000
"""Members of a group: a connection of the leader each."""
MESSAGE_BYTES_MAX = 8 * MIB
"""Largest message between member and leader: the progress of many partitions."""
RETRY_DELAYS_MAX = 60.0
"""The longest wait between attempts, as a multiple of the first one."""


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(GROUP, OPTIONS)]


def register(conf: cfg.ConfigOpts) -> cfg.ConfigOpts:
    """Register the options and check their values.  Raises InvalidConfig."""
    conf.register_opts(OPTIONS, group=GROUP)
    check_group(conf, GROUP, OPTIONS)
    return conf


def lease_settings(conf: cfg.ConfigOpts) -> LeaseSettings:
    return LeaseSettings(member_lease_s=conf[GROUP].member_lease, claim_time_s=CLAIM_LEASES * conf[GROUP].member_lease)


def borrower_settings(conf: cfg.ConfigOpts) -> BorrowerSettings:
    groups = conf[GROUP]
    return BorrowerSettings(
        find_leader_s=FIND_LEADER_INTERVAL_S,
        ping_s=lease_settings(conf).ping_s,
        unsubscribe_timeout_s=groups.unsubscribe_timeout,
        revoke_timeout_s=REVOKE_TIMEOUT_S,
    )


def leader_settings(conf: cfg.ConfigOpts) -> LeaderSettings:
    groups = conf[GROUP]
    return LeaderSettings(
        lease=lease_settings(conf),
        resend_s=RESEND_INTERVAL_S,
        rebalance_delay_s=REBALANCE_DELAY_S,
        # The member gives up after its time; one that does not even do that is expelled.
        revoke_timeout_s=1.5 * REVOKE_TIMEOUT_S + 2 * RESEND_INTERVAL_S,
        attempts_max=groups.attempts_max,
        members_max=MEMBERS_MAX,
    )


def delivery_settings(conf: cfg.ConfigOpts) -> DeliverySettings:
    groups = conf[GROUP]
    return DeliverySettings(
        attempts_max=groups.attempts_max,
        retry_delay_s=groups.retry_delay,
        retry_delay_max_s=RETRY_DELAYS_MAX * groups.retry_delay,
        window=WINDOW,
    )
