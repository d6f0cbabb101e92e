"""The ``[durability]`` options, and the groups of name-spaces and policies that they name.

``name_spaces = orders, rest`` reads ``[durability_name_space:orders]`` and ``[durability_name_space:rest]``;
``policies`` is an ordered list in the same way, ``[durability_policy:NAME]``: the first whose ``name_space`` expression
matches a name-space applies to it.
"""

from __future__ import annotations

import enum
import logging
import math
import socket
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from oslo_config import cfg

from durability_service.core.alignment.merging import MergePolicy
from durability_service.core.effects import Level
from durability_service.core.namespaces import (
    PRIORITY_MAX,
    SAME_ROLE,
    Alignee,
    Kind,
    NameSpace,
    NamespacePolicy,
    overlap,
)
from durability_service.core.settings import ServiceSettings, TopicRules
from durability_service.serving.administration import KEY_BYTES_MIN
from pubsub_api import config as pubsub_config
from pubsub_api.core.durability import Durability
from pubsub_api.core.topics import check_filter, check_topic
from pubsub_api.errors import InvalidConfig, InvalidTopic
from pubsub_api.runtime.option_names import nearest
from pubsub_api.runtime.options import DAY_S, MIB, advanced, count, flag, seconds, size, text

GROUP = "durability"
NAME_SPACE_GROUP = "durability_name_space"
POLICY_GROUP = "durability_policy"
CONTROL_TOPICS = "heliograph/durability"
"""Services speak to each other on topics below ``heliograph/durability/DOMAIN``; no subscriber is handed that."""

DEFAULT_NAME_SPACE = "all"
DEFAULT_POLICY = "default"
"""Need no group of their own."""
BUCKETS_MAX = 32_768
"""The digests of all buckets have to fit into a frame of 1 MiB, the default of ``frame_bytes_max``."""

LOG = logging.getLogger(__name__)

Names = TypeVar("Names", bound=enum.Enum)
Value = TypeVar("Value")


def _choices(kind: type[Names]) -> list[str]:
    return [member.name for member in kind]


OPTIONS: Sequence[cfg.Opt] = (
    text("node", "", "Name of this service among its fellows, stable across restarts. Empty: the name kept in the "
         "store, or host name and process id. The highest name wins a tie."),
    text("store", "", "File for PERSISTENT data. Empty: everything is kept in memory only."),
    cfg.ListOpt("fellows", default=[], help="Addresses of the other services, for drivers whose publishers bind; "
                "with a broker or router all are found there."),
    cfg.ListOpt("kinds", default=[], help="How long data of which topics is kept: FILTER=KIND, the first match wins. "
                "Kinds: VOLATILE, TRANSIENT_LOCAL, TRANSIENT, PERSISTENT; the last for all other topics."),
    *advanced(
        text("domain", "default", "Services of other domains are not heard. One level of a topic."),
        text("role", "default", "Role of this service. Merge policies select by the other side's role."),
        text("snapshot_directory", "", "Where snapshots are written. Empty: none are made."),
        text("admin_key", "", "With this key history can be deleted and snapshots be made: the same text in the "
             "services and where such requests come from, 16 bytes or more. Empty: neither can be done.", secret=True),
        cfg.ListOpt("name_spaces", default=[DEFAULT_NAME_SPACE], help="Name-spaces, each described by a group "
                    "[durability_name_space:NAME]."),
        cfg.ListOpt("policies", default=[DEFAULT_POLICY], help="Policies in order, each described by a group "
                    "[durability_policy:NAME]. The first that matches a name-space applies."),
        cfg.ListOpt("depths", default=[], help="Samples kept per object, by topic: FILTER=NUMBER, the first match "
                    "wins; one for all other topics."),
        cfg.ListOpt("lifespans", default=[], help="How long samples are worth keeping, by topic: FILTER=SECONDS, the "
                    "first match wins; 0, as for all other topics: for ever."),
        seconds("expiry_time", 4.0, 0.2, 3600.0, "A fellow that is silent for this long is gone."),
        seconds("no_service_time", 2.0, 0.1, 3600.0, "A reader of history that hears from no service for this long is "
                "told that there is none."),
        seconds("initial_discovery_period", 3.0, 0.05, 60.0, "How long a service that starts listens for fellows."),
        count("expected_peers", 0, 0, 1000, "Discovery ends early when this many fellows have answered. 0: unknown."),
        count("injection_peers_min", 0, 0, 1000, "Before the set on disk of any service becomes the set of the domain, "
              "so many other services of its role must be there: an old or lagging set that starts first and alone is "
              "not taken for the newest. Where fewer are left, no service becomes complete. 0: one is enough."),
        seconds("cleanup_delay", DAY_S, 1.0, 365 * DAY_S, "Deletions are remembered this long. A service that was "
                "away for longer does not bring its old data back."),
        count("buckets", 1024, 16, BUCKETS_MAX, "Parts in which sets are compared, and read from disk: the same in all "
              "services of a domain. Best is one for some hundred objects of the largest name-space. A store that has "
              "another number is written anew at the start."),
        size("hot_bytes_max", 512 * MIB, "Memory for what is on disk as well: PERSISTENT data that was used lately, "
             "and changes that are not in their place on disk yet. A set that fits in is never read twice. With less "
             "than 16 MiB a flood of changes takes several times as long."),
        flag("require_aligner", False, "End with an error when, a discovery period after the first, no service may "
             "lead a name-space. Otherwise the service waits for one that may."),
        text("lease_file", "", "File whose time the watchdog renews while the service works, for a supervisor to look "
             "at. Empty: none."),
        cfg.StrOpt("tracing_verbosity", default=Level.INFO.name, choices=_choices(Level),
                   help="What is traced; each level includes those before it."),
        text("tracing_file", "", "File for the trace, one JSON object per line. Empty: the log."),
    ),
)  # fmt: skip

COMBINE_INITIAL_S = 0.5
"""How long an aligner waits for further requests of services that start, unless all that it knows of have asked."""
COMBINE_OPERATIONAL_S = 0.01
"""How long it waits for further requests of others: those that one cause makes ask come together."""
HEARTBEAT_FACTOR = 0.25
"""Part of ``expiry_time`` between heartbeats: three may be lost before a fellow counts as gone."""
ALIGN_TIMEOUT_S = 2.0
"""An alignment that does not move for this long is asked for again."""
RECONCILE_INTERVAL_S = 5.0
"""Sets that should be equal and differ for this long are compared bucket by bucket."""
EXPIRY_ROUND_S = 5.0
"""Samples whose lifespan is over leave memory and disk within this time.  Readers do not get them from the moment on at
which it is over."""
PAGE_TIMEOUT_S = 4.0
"""A reader of history turns to another service when a page has not come for this long: as a fellow that is gone."""
MISSING_RANGES_MAX = 1000
"""Ranges of events that the bus gave up and that publishers are asked for again, in case they were only cut off."""
ASK_AGAIN_INTERVAL_S = 2.0
ASK_AGAIN_ATTEMPTS_MAX = 9
"""When they are asked for the second time, then after twice as long, and so on, for a quarter of an hour.  Then no
publisher has them any more."""
GATHER_BYTES_MAX = 4 * MIB
"""While the disk is busy live events are gathered, and of each object only what is kept goes on, until their frames
have this size."""
CONFIRMED_STREAMS_MAX = 100_000
"""Streams of which the service knows what it holds durably, to answer publishers that ask, about 100 bytes each."""
TERMINATE_PERIOD_S = 10.0
"""How long a service that ends may take to write what it has: less than systemd waits."""
WATCHDOG_INTERVAL_S = 1.0
WATCHDOG_TIMEOUT_S = 10.0
"""How often the watchdog looks whether the service still works; without progress for the second the lease is not
renewed."""

NAME_SPACE_OPTIONS: Sequence[cfg.Opt] = advanced(
    cfg.ListOpt("topics", default=["#"], help="Topic filters whose data is handled as one set."),
)

POLICY_OPTIONS: Sequence[cfg.Opt] = advanced(
    cfg.StrOpt("name_space", default="*", help="Expression that is matched against names of name-spaces, also of those "
               "that only fellows have."),
    cfg.BoolOpt("aligner", default=True, help="Give data to fellows. Only a service that does can become master."),
    cfg.StrOpt("alignee", default=Alignee.INITIAL.name, choices=_choices(Alignee),
               help="When the data is fetched: at once, when a reader here wants it, or never for keeping."),
    cfg.StrOpt("durability", default=Kind.PERSISTENT.name, choices=_choices(Kind),
               help="Data is kept no stronger than this."),
    cfg.BoolOpt("delayed_alignment", default=False, help="A late set on disk is still used when the domain is empty "
                "and nothing was ever written. The same in all services of a domain."),
    cfg.BoolOpt("equality_check", default=True, help="Compare sets before data is moved."),
    cfg.IntOpt("master_priority", default=PRIORITY_MAX, min=0, max=PRIORITY_MAX,
               help="The highest becomes master. 0: never."),
    cfg.ListOpt("merge", default=[f"{SAME_ROLE}:MERGE", "*:IGNORE"], help="What is done when two sides meet: "
                "SCOPE:POLICY, the first whose scope matches the other side's role. @same is this service's own role. "
                "Policies: IGNORE, DELETE, MERGE, REPLACE, CATCHUP."),
)  # fmt: skip


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator, with the groups of the default name-space and policy."""
    return [
        (GROUP, OPTIONS),
        (f"{NAME_SPACE_GROUP}:{DEFAULT_NAME_SPACE}", NAME_SPACE_OPTIONS),
        (f"{POLICY_GROUP}:{DEFAULT_POLICY}", POLICY_OPTIONS),
    ]


def register(conf: cfg.ConfigOpts) -> None:
    """Register and check every option, those of the name-spaces and policies named included.  Raises InvalidConfig."""
    conf.register_opts(OPTIONS, group=GROUP)
    pubsub_config.check_group(conf, GROUP, OPTIONS)
    for prefix, option, options, default in (
        (NAME_SPACE_GROUP, "name_spaces", NAME_SPACE_OPTIONS, DEFAULT_NAME_SPACE),
        (POLICY_GROUP, "policies", POLICY_OPTIONS, DEFAULT_POLICY),
    ):
        names = conf[GROUP][option]
        for name in names:
            conf.register_opts(options, group=f"{prefix}:{name}")
            pubsub_config.check_group(conf, f"{prefix}:{name}", options)
            if name != default:
                _check_described(conf, f"{prefix}:{name}", option, options)
        for group in _described(conf, prefix) - {f"{prefix}:{name}" for name in (*names, default)}:
            LOG.warning("Durability: [%s] is not among [%s] %s, so it has no effect.", group, GROUP, option)


def _described(conf: cfg.ConfigOpts, prefix: str) -> set[str]:
    return {group for group in conf.list_all_sections() if group.startswith(f"{prefix}:")}


def _check_described(conf: cfg.ConfigOpts, group: str, option: str, options: Sequence[cfg.Opt]) -> None:
    """Raises InvalidConfig for a name-space or a policy of which nothing is said: it would be the default one, and its
    name is probably misspelt."""
    prefix, _, name = group.partition(":")
    described = _described(conf, prefix)
    found = (conf.get_location(one.dest, group) for one in options)
    is_set = any(one is not None and one.location is not cfg.Locations.opt_default for one in found)
    if group in described or is_set:
        return
    near = nearest(name, [one.partition(":")[2] for one in described])
    hint = f": is {near} meant?" if near else ""
    raise InvalidConfig(f"[{GROUP}] {option}: {name!r} is described nowhere, there is no group [{group}]{hint}")


class Topics(NamedTuple):
    """Where the services of a domain speak."""

    adverts: str
    """How each stands.  Readers of history listen here, too."""
    alignment: str
    """Everything else, and that can be a lot."""


def control_topics(conf: cfg.ConfigOpts) -> Topics:
    """Raises InvalidConfig."""
    domain = conf[GROUP].domain
    try:
        if "/" in domain:
            raise InvalidTopic("it has more than one level")
        return Topics(*(check_topic(f"{CONTROL_TOPICS}/{domain}/{name}") for name in Topics._fields))
    except InvalidTopic as error:
        raise InvalidConfig(f"[{GROUP}] domain = {domain!r} cannot be used: {error}") from error


def admin_key(conf: cfg.ConfigOpts) -> bytes | None:
    """None when administration is off.  Raises InvalidConfig."""
    key: bytes = conf[GROUP].admin_key.encode()
    if key and len(key) < KEY_BYTES_MIN:
        raise InvalidConfig(f"[{GROUP}] admin_key is shorter than {KEY_BYTES_MIN} bytes: it could be guessed")
    return key or None


def default_node() -> str:
    return socket.gethostname()


def service_settings(conf: cfg.ConfigOpts, *, node: str, incarnation: int) -> ServiceSettings:
    """What the core needs, from the options.  Raises InvalidConfig."""
    options = conf[GROUP]
    spaces = name_spaces(conf)
    return ServiceSettings(
        node=node,
        incarnation=incarnation,
        domain=options.domain,
        role=options.role,
        name_spaces=spaces,
        policies=tuple(_policy(conf, name) for name in options.policies),
        rules=topic_rules(conf),
        expiry_s=options.expiry_time,
        heartbeat_factor=HEARTBEAT_FACTOR,
        discovery_s=options.initial_discovery_period,
        expected_peers=options.expected_peers,
        injection_peers_min=options.injection_peers_min,
        combine_initial_s=COMBINE_INITIAL_S,
        combine_operational_s=COMBINE_OPERATIONAL_S,
        align_timeout_s=ALIGN_TIMEOUT_S,
        reconcile_s=RECONCILE_INTERVAL_S,
        cleanup_s=options.cleanup_delay,
        expiry_round_s=EXPIRY_ROUND_S,
        buckets=options.buckets,
        hot_bytes=options.hot_bytes_max,
    )


def name_spaces(conf: cfg.ConfigOpts) -> tuple[NameSpace, ...]:
    """The name-spaces configured here.  Raises InvalidConfig when two of them intersect."""
    spaces: list[NameSpace] = []
    for name in conf[GROUP].name_spaces:
        group = f"{NAME_SPACE_GROUP}:{name}"
        try:
            space = NameSpace(name, frozenset(conf[group].topics))
        except InvalidTopic as error:
            raise InvalidConfig(f"[{group}] topics: {error}") from error
        for other in spaces:
            if shared := overlap(space, other):
                raise InvalidConfig(
                    f"[{group}] topics: {shared[0]!r} has topics in common with {shared[1]!r} of {other.name!r}"
                )
        spaces.append(space)
    return tuple(spaces)


def topic_rules(conf: cfg.ConfigOpts) -> TopicRules:
    """Raises InvalidConfig.  What is said of ``#`` at the end of a list is for all other topics."""
    options = conf[GROUP]
    plain = TopicRules()
    kinds = [(wanted, _kind(value)) for wanted, value in _pairs(options.kinds, "kinds")]
    depths = [(wanted, _depth(value)) for wanted, value in _pairs(options.depths, "depths")]
    lifespans = [(wanted, _lifespan(value)) for wanted, value in _pairs(options.lifespans, "lifespans")]
    return TopicRules(
        default_kind=_rest(kinds, plain.default_kind),
        kinds=tuple(kinds),
        default_depth=_rest(depths, plain.default_depth),
        depths=tuple(depths),
        default_lifespan_s=_rest(lifespans, plain.default_lifespan_s),
        lifespans=tuple(lifespans),
    )


def _rest(pairs: list[tuple[str, Value]], default: Value) -> Value:
    """Take the value for all other topics out of a list."""
    return pairs.pop()[1] if pairs and pairs[-1][0] == "#" else default


def _kind(value: str) -> Kind:
    return _named(Kind, value, "kinds")


def _pairs(entries: Sequence[str], option: str) -> list[tuple[str, str]]:
    pairs = []
    for entry in entries:
        wanted, separator, value = entry.rpartition("=")
        try:
            if not separator:
                raise InvalidTopic("there is no '=' in it")
            pairs.append((check_filter(wanted.strip()), value.strip()))
        except InvalidTopic as error:
            raise InvalidConfig(f"[{GROUP}] {option}: {entry!r} is not FILTER=VALUE: {error}") from error
    return pairs


def _depth(value: str) -> int:
    if not value.isdigit() or int(value) < 1:
        raise InvalidConfig(f"[{GROUP}] depths: {value!r} is not a number of 1 or more")
    return int(value)


def _lifespan(value: str) -> float:
    try:
        lifespan_s = float(value)
    except ValueError:
        lifespan_s = -1.0
    if not 0 <= lifespan_s < math.inf:
        raise InvalidConfig(f"[{GROUP}] lifespans: {value!r} is not a number of seconds, 0 or more")
    return lifespan_s


def _policy(conf: cfg.ConfigOpts, name: str) -> NamespacePolicy:
    group = f"{POLICY_GROUP}:{name}"
    options = conf[group]
    merges = []
    for entry in options.merge:
        scope, separator, value = entry.rpartition(":")
        if not separator or not scope:
            raise InvalidConfig(f"[{group}] merge: {entry!r} is not SCOPE:POLICY")
        merges.append((scope.strip(), _named(MergePolicy, value.strip(), f"merge of [{group}]")))
    return NamespacePolicy(
        name_space=options.name_space,
        aligner=options.aligner,
        alignee=Alignee[options.alignee],
        durability=_durability(conf, options.durability),
        delayed_alignment=options.delayed_alignment,
        equality_check=options.equality_check,
        master_priority=options.master_priority,
        merges=tuple(merges),
    )


def _durability(conf: cfg.ConfigOpts, wanted: str) -> Durability:
    """Where there is no disk, nothing outlives the service."""
    return Durability[wanted] if conf[GROUP].store else min(Durability[wanted], Durability.TRANSIENT)


def _named(kind: type[Names], value: str, option: str) -> Names:
    try:
        return kind[value]
    except KeyError:
        raise InvalidConfig(f"[{GROUP}] {option}: {value!r} is none of {', '.join(_choices(kind))}") from None
