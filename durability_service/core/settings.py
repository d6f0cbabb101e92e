"""What the core needs to know, as plain values.  The shell fills them from oslo.config; the simulator by hand."""

from __future__ import annotations

import dataclasses
import hashlib

from durability_service.core.namespaces import Kind, NameSpace, NamespacePolicy, covers, intersect
from pubsub_api.core.topics import matches


@dataclasses.dataclass(frozen=True)
class TopicRules:
    """What is kept of which topic: lists of filter and value, the first match wins."""

    kinds: tuple[tuple[str, Kind], ...] = ()
    default_kind: Kind = Kind.PERSISTENT
    depths: tuple[tuple[str, int], ...] = ()
    default_depth: int = 1
    lifespans: tuple[tuple[str, float], ...] = ()
    """Seconds."""
    default_lifespan_s: float = 0.0
    """0: for ever."""

    def kind_of(self, topic: str) -> Kind:
        return next((kind for wanted, kind in self.kinds if matches(wanted, topic)), self.default_kind)

    def depth_of(self, topic: str) -> int:
        return next((depth for wanted, depth in self.depths if matches(wanted, topic)), self.default_depth)

    def lifespan_ns_of(self, topic: str) -> int:
        """How long a sample of the topic is worth keeping; 0: for ever."""
        lifespan_s = next((one for wanted, one in self.lifespans if matches(wanted, topic)), self.default_lifespan_s)
        return int(lifespan_s * 1e9)

    @property
    def has_lifespans(self) -> bool:
        return bool(self.default_lifespan_s or self.lifespans)

    def kinds_within(self, topic_filter: str) -> list[tuple[str, Kind]]:
        """The kinds that topics of this filter can have, each with a filter that selects those topics."""
        found: list[tuple[str, Kind]] = []
        for wanted, kind in self.kinds:
            if intersect(wanted, topic_filter):
                found.append((wanted if covers(topic_filter, wanted) else topic_filter, kind))
            if covers(wanted, topic_filter):
                return found
        return [*found, (topic_filter, self.default_kind)]

    def fingerprint(self) -> bytes:
        """Equal for services that keep the same; others could never agree on a set."""
        kept = (self.kinds, int(self.default_kind), self.depths, self.default_depth)
        rules = (*kept, self.lifespans, self.default_lifespan_s)
        return hashlib.blake2b(repr(rules).encode(), digest_size=8).digest()


@dataclasses.dataclass(frozen=True)
class ServiceSettings:
    node: str
    """Identifies this service among its peers.  The highest wins a tie."""
    incarnation: int = 1
    """Higher at every start."""
    domain: str = "default"
    role: str = "default"
    name_spaces: tuple[NameSpace, ...] = ()
    policies: tuple[NamespacePolicy, ...] = (NamespacePolicy(),)
    rules: TopicRules = TopicRules()
    expiry_s: float = 4.0
    heartbeat_factor: float = 0.25
    discovery_s: float = 3.0
    expected_peers: int = 0
    """Discovery ends early when this many peers have answered."""
    injection_peers_min: int = 0
    """So many peers of our role must be there before what is on disk becomes the set of the domain."""
    combine_initial_s: float = 0.5
    combine_operational_s: float = 0.01
    align_timeout_s: float = 2.0
    """Without progress for this long an alignment is asked for again."""
    reconcile_s: float = 5.0
    """Sets that should be equal and are not for this long are compared bucket by bucket."""
    cleanup_s: float = 86_400.0
    """Deletions are remembered this long."""
    expiry_round_s: float = 5.0
    """Samples whose lifespan is over leave a set within this time; they are not given to readers any more at once."""
    buckets: int = 1024
    """Parts in which sets are compared.  The same in all services of a domain."""
    chunk_bytes: int = 256 * 1024
    window_chunks: int = 32
    """Chunks on their way to the slowest alignee."""
    chunks_per_step: int = 8
    repack_changes: int = 4096
    """So many samples come and go before buckets on disk are packed anew."""
    hot_bytes: int = 512 * 1024 * 1024
    """Memory for what is on disk as well: buckets used lately, and changes that are not in their buckets yet."""
    clean_buckets: int = 8
    """So many buckets are looked through at a time for samples that are deleted, or expired and on disk only."""
    reads_per_step: int = 32
    """After so many buckets that had to be read from disk, further live samples wait for the next step."""
    idle_samples: int = 2000
    """So many samples that were not used lately are packed per heartbeat."""
    buckets_per_step: int = 64
    lineage_max: int = 64
    clock_skew_max_s: float = 60.0
    peers_max: int = 1000
    name_spaces_max: int = 1000
    held_max: int = 1_000_000
    """Live samples held back, and not acknowledged, until the set is complete."""

    @property
    def heartbeat_s(self) -> float:
        return self.expiry_s * self.heartbeat_factor
