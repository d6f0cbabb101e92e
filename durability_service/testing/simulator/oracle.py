"""What must hold.  The names are those of the invariants in ``docs/durability.md``.

While a scenario runs, `Oracle` looks at every advert, every operation of a disk and every step; at its end, when all
faults are over and time has passed, `check_settled` looks at everything.
"""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from durability_service.core.alignment.merging import MergePolicy
from durability_service.core.effects import Apply, Fill, StoreOperation
from durability_service.core.keeping.holding import Holding
from durability_service.core.keeping.lifecycle import Phase
from durability_service.core.messages import NO_EPOCH, Advert, Epoch
from durability_service.core.namespaces import SAME_ROLE, Kind
from durability_service.core.sets.sample_set import Deletion
from durability_service.core.sets.samples import InstanceKey, Sample
from durability_service.testing.simulator.profiles import Profile
from pubsub_api.testing.simulator.world import Violation

if TYPE_CHECKING:
    from durability_service.testing.simulator.nodes import SimNode
    from durability_service.testing.simulator.readers import SimReader


def reflects(held: Holding, sample: Sample, now_ns: int) -> bool:
    """Whether the set holds the sample, or something that replaced it, or a deletion of it, or it has expired."""
    samples = held.set
    present = tuple(one for one in samples.get(sample.instance) if not samples.is_deleted(one))  # no reader gets those
    is_gone = samples.is_deleted(sample) or held.expiry.is_expired(sample, now_ns)
    return is_gone or samples.kept((*present, sample)) == present


class Oracle:
    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._slack_ns = int(2e9 * profile.skew_s)
        """How far the clocks of two services may be apart."""
        self.written: dict[bytes, Sample] = {}
        self._acknowledged: dict[str, dict[bytes, Sample]] = defaultdict(dict)
        self._acknowledged_at: dict[tuple[str, bytes], float] = {}
        self._epochs: dict[tuple[str, str], Epoch] = {}
        self._choices: dict[tuple[str, bytes], str] = {}
        self.forgotten: set[bytes] = set()
        """Samples of long ago, by digest, that were deleted since; no service remembers that they were."""
        self.clones: list[SimNode] = []
        """Services that have the name of another."""
        self.acknowledgements = 0
        self._alignments: dict[tuple[str, str], list[Sample]] = {}
        """Node and name-space -> what its source had acknowledged when it asked."""
        self._replaced_at: dict[tuple[str, str], int] = {}
        """Node and name-space -> up to when it may have given its own data up, for that of another side."""
        self._roles: dict[str, str] = {}
        self._stamps: dict[tuple[bytes, str], int] = {}
        """Writer and topic -> the newest timestamp."""
        self._injected: dict[tuple[str, str], str] = {}
        """Name-space and role -> the node that injected."""
        self._advert_at: dict[str, float] = {}
        self._deleted: dict[InstanceKey, int] = {}
        """Instance -> when it was last deleted."""

    def _reflects(self, node: SimNode, held: Holding, sample: Sample) -> bool:
        now_ns = node.wall_ns() + self._slack_ns
        deleted = self._deleted.get(sample.instance, 0)
        is_forgotten = sample.timestamp <= deleted < now_ns - int(node.settings.cleanup_s * 1e9)
        return is_forgotten or reflects(held, sample, now_ns)

    # -- what happens

    def wrote(self, sample: Sample) -> None:
        """S20: whatever the clock of a writer does, what it writes later is newer."""
        stream = (sample.writer, sample.topic)
        if sample.timestamp <= self._stamps.get(stream, 0):
            raise Violation(f"S20: {sample[:6]} is not newer than what was written before")
        self._stamps[stream] = sample.timestamp
        self.written[sample.digest] = sample
        if sample.is_delete:
            self._deleted[sample.instance] = max(sample.timestamp, self._deleted.get(sample.instance, 0))

    def started(self, node: SimNode) -> None:
        self._roles[node.name] = node.settings.role
        for known in (self._epochs, self._alignments, self._replaced_at):
            for key in [key for key in known if key[0] == node.name]:
                del known[key]
        if self._profile.kind is not Kind.PERSISTENT:
            self._acknowledged.pop(node.name, None)
        self.resumed(node)

    def resumed(self, node: SimNode) -> None:
        """A service that stood still cannot have said anything."""
        self._advert_at.pop(node.name, None)

    def acknowledged(self, node: SimNode, sample: Sample) -> None:
        self.acknowledgements += 1
        self._acknowledged_at.setdefault((node.name, sample.digest), node.now)
        self._acknowledged[node.name][sample.digest] = sample

    def storing(self, node: SimNode, operation: StoreOperation) -> None:
        """S19: nothing that is to be kept in memory only goes to disk."""
        if isinstance(operation, Apply):
            self._check_removed(node, operation)
        if isinstance(operation, Apply | Fill):
            topics = {topic for batch in operation.batches.values() for topic in batch.topics}
            topics |= {sample.topic for sample in operation.added} if isinstance(operation, Apply) else set()
            for topic in topics:
                if self._profile.kind is not Kind.PERSISTENT or topic.endswith("/memory"):
                    raise Violation(f"S19: {node.name} writes {topic} to disk")

    def _check_removed(self, node: SimNode, operation: Apply) -> None:
        """S13: a merge touches nothing that was written after it was asked for.  All else that goes was replaced."""
        assert node.core is not None
        name = operation.name_space
        held = node.core.keepers[name].holding
        for sample in operation.removed:
            is_given_up = sample.timestamp <= self._replaced_at.get((node.name, name), 0)
            if not is_given_up and not self._reflects(node, held, sample):
                raise Violation(f"S13: {node.name} removes {sample[:6]}, which nothing replaced")

    def advertised(self, node: SimNode, advert: Advert) -> None:
        self._check_period(node)
        for space in advert.name_spaces:
            if space.candidate:  # S1: one view, one choice
                known = self._choices.setdefault((space.name, space.view), space.candidate)
                if known != space.candidate:
                    raise Violation(f"S1: {node.name} chooses {space.candidate}, others {known} in the same view")
            if space.is_master and not (space.can_lead and space.priority and space.is_aligner):
                raise Violation(f"S2: {node.name} leads {space.name} and must not")
            on_disk = node.disk.current.get(space.name)
            assert node.core is not None
            if space.is_complete and node.core.keepers[space.name].holding.is_persistent:
                # S3, S4: what is said is on disk, and what is on disk is whole
                if on_disk is None or not on_disk.is_complete:
                    raise Violation(f"S4: {node.name} says that {space.name} is complete and has no such set on disk")
                if on_disk.marks.epoch < space.epoch:
                    raise Violation(f"S3: {node.name} advertises {space.epoch} and has {on_disk.marks.epoch} on disk")

    def _check_period(self, node: SimNode) -> None:
        """L6: whatever a service is busy with, it is heard."""
        silent_s = node.now - self._advert_at.get(node.name, node.now)
        if silent_s > 2 * node.settings.heartbeat_s:
            raise Violation(f"L6: {node.name} was not heard for {silent_s:.3f} s")
        self._advert_at[node.name] = node.now

    def stepped(self, node: SimNode) -> None:
        """S3: epochs never decrease within a life."""
        assert node.core is not None
        for name, keeper in node.core.keepers.items():
            epoch = keeper.holding.epoch
            if epoch < self._epochs.get((node.name, name), NO_EPOCH):
                raise Violation(f"S3: {node.name} went back to {epoch}")
            self._epochs[node.name, name] = epoch

    def traced(self, node: SimNode, what: str, fields: Mapping[str, Any]) -> None:
        if what == "injecting" and self._profile.is_faultless:  # S6; otherwise the first may have died, or be cut off
            known = self._injected.setdefault((fields["name_space"], node.settings.role), node.name)
            if known != node.name:
                raise Violation(f"S6: {node.name} injects {fields['name_space']}, which {known} did before")
        if what == "epoch" and self._profile.merge is MergePolicy.IGNORE:
            self._check_apart(node, fields)
        if what == "aligning":
            self._note_alignment(node, fields)
        elif what == "alignment abandoned":
            self._alignments.pop((node.name, fields["name_space"]), None)
        elif what in ("aligned", "complete"):
            self._check_aligned(node, what, fields)

    def _check_apart(self, node: SimNode, fields: Mapping[str, Any]) -> None:
        """S24: with IGNORE no service takes the epoch of another side for its own: it does not have the data of it."""
        assert node.core is not None
        held = node.core.keepers[fields["name_space"]].holding
        master: str = fields["epoch"].master
        for sample in self._acknowledged[master].values() if master != node.name else ():
            is_old = node.now - self._acknowledged_at[master, sample.digest] > 2 * node.settings.heartbeat_s
            if is_old and held.matcher.match(sample.topic) and not self._reflects(node, held, sample):
                raise Violation(f"S24: {node.name} follows {master} to {fields['epoch']} without {sample[:6]}")

    def _note_alignment(self, node: SimNode, fields: Mapping[str, Any]) -> None:
        """A node asks."""
        assert node.core is not None
        key = (node.name, fields["name_space"])
        self._check_policy(node, fields)
        if self._profile.merge is MergePolicy.MERGE and not self.clones:  # else it is not clear which node it asks
            self._alignments[key] = list(self._acknowledged[fields["peer"]].values())
        alignment = node.core.keepers[key[1]].holding.alignment
        if alignment is not None and alignment.policy in (MergePolicy.CATCHUP, MergePolicy.REPLACE):
            self._replaced_at[key] = alignment.asked_at

    def _check_policy(self, node: SimNode, fields: Mapping[str, Any]) -> None:
        """S14: sides of a split are joined as the first scope says that matches the role of the other side."""
        if fields["purpose"] not in ("collect", "foreign"):
            return
        own, role = node.settings.role, self._roles[fields["peer"]]
        matching = [
            merge
            for scope, merge in node.settings.policies[0].merges
            if fnmatch.fnmatchcase(role, own if scope == SAME_ROLE else scope)
        ]
        expected = [*matching, MergePolicy.IGNORE][0]
        if fields["policy"] != expected.value:
            raise Violation(f"S14: {node.name} of {own} joins {fields['peer']} of {role} by {fields['policy']}")

    def _check_aligned(self, node: SimNode, what: str, fields: Mapping[str, Any]) -> None:
        """S8, S17: a node that was aligned has what its source had acknowledged when it was asked, also when that was
        said to be what it had already; and one that is complete has it still."""
        assert node.core is not None
        key = (node.name, fields["name_space"])
        invariant = "S17" if fields.get("received") == 0 else "S8"
        held = node.core.keepers[key[1]].holding
        for sample in self._alignments.get(key, []):
            if held.matcher.match(sample.topic) and not self._reflects(node, held, sample):
                raise Violation(f"{invariant}: {node.name} is {what} without {sample[:6]}")

    def check_kept(self, node: SimNode) -> None:
        """S7, at any time: what a service acknowledged is in its set."""
        if node.core is None or self._profile.merge is not MergePolicy.MERGE:
            return  # other policies drop data on purpose
        for sample in self._acknowledged[node.name].values():
            for keeper in node.core.keepers.values():
                held = keeper.holding
                if held.matcher.match(sample.topic) and not (held.is_applying or self._reflects(node, held, sample)):
                    raise Violation(f"S7: {node.name} acknowledged {sample[:6]} and does not have it")

    def was_read(self, reader: SimReader, sources: Sequence[SimNode]) -> None:
        """S23: a reader that is told that history is complete has what was acknowledged by any service that it
        reached."""
        if self._profile.merge is not MergePolicy.MERGE:
            return
        for node in sources:
            for sample in self._acknowledged[node.name].values():
                self._check_reader("S23", reader, node, sample)

    def check_readers(self, readers: Sequence[SimReader], nodes: Sequence[SimNode]) -> None:
        """L8: in the end a reader that was told that history is complete has all that services hold, however late it
        came."""
        for reader in readers:
            for node in nodes:
                held = node.core.keepers[reader.space.name].holding if node.core else None
                for sample in held.set if reader.is_complete and held is not None else ():
                    self._check_reader("L8", reader, node, sample)

    def _check_reader(self, invariant: str, reader: SimReader, node: SimNode, sample: Sample) -> None:
        held = node.core.keepers[reader.space.name].holding if node.core else None
        if held is None or not held.matcher.match(sample.topic):
            return
        present = reader.set.get(sample.instance)
        is_gone = held.set.is_deleted(sample) or held.expiry.is_expired(sample, node.wall_ns() + self._slack_ns)
        if not is_gone and reader.set.kept((*present, sample)) != present:
            raise Violation(f"{invariant}: a reader at {reader.host.name} lacks {sample[:6]} of {node.name}")

    # -- the end

    def check_settled(self, all_nodes: list[SimNode]) -> None:
        nodes = [node for node in all_nodes if node not in self.clones]
        for clone in self.clones:
            self._check_clone(clone, nodes[0])
        names = {name for node in nodes if node.core for name in node.core.keepers}
        for name in sorted(names):
            holdings = {
                node.name: node.core.keepers[name].holding for node in nodes if node.core and name in node.core.keepers
            }
            self._check_masters(nodes, name, holdings)
            for group in self._sharers(nodes):
                members = {node.name: holdings[node.name] for node in group if node.name in holdings}
                self._check_sets(members, [node for node in group if node.name in members])
        for node in nodes:
            self.check_kept(node)
            self._check_expired(node)
            self._check_disk(node)
            self._check_answered(node)

    def _check_clone(self, clone: SimNode, first: SimNode) -> None:
        """S25: of two services with one name that hear each other the younger ends, and the other says so."""
        if clone.is_alive or not clone.was_refused:
            raise Violation(f"S25: {clone.name} serves under the name of {first.name}")
        if first.core is None or not first.core.name_clashes.clashes:
            raise Violation(f"S25: {first.name} does not say that {clone.name} has its name")

    def _check_answered(self, node: SimNode) -> None:
        """L7: what reaches a service is acknowledged in the end, whatever the clock of its publisher did."""
        if node.core is None or self._profile.policies:
            return
        for sample in node.unacknowledged:
            if node.core.keeps(sample.topic):
                raise Violation(f"L7: {node.name} never acknowledged {sample[:6]}")

    def _sharers(self, nodes: list[SimNode]) -> list[list[SimNode]]:
        """Services that should end with the same set: all, unless roles treat each other differently."""
        if not self._profile.merges:
            return [nodes]
        roles = sorted({node.settings.role for node in nodes})
        return [[node for node in nodes if node.settings.role == role] for role in roles]

    def _check_disk(self, node: SimNode) -> None:
        """S5: a start would find what the service holds, however it was written: in changes, in buckets, in both."""
        for name, keeper in node.core.keepers.items() if node.core else ():
            held = keeper.holding
            on_disk = node.disk.current.get(name)
            if not (held.is_persistent and held.is_complete and on_disk and node.is_disk_idle):
                continue
            expected = {sample.digest for sample in held.stored.of(list(held.set))}
            if set(on_disk.samples) != expected:
                raise Violation(f"S5: {node.name} has {len(expected)} samples and {len(on_disk.samples)} on disk")

    def _check_expired(self, node: SimNode) -> None:
        """S21: what has expired is gone, once every clock says so and there was time to look."""
        if node.core is None:
            return
        due_ns = node.wall_ns() - self._slack_ns - int(2e9 * node.settings.expiry_round_s)
        for keeper in node.core.keepers.values():
            held = keeper.holding
            for sample in held.set:
                if held.is_complete and held.expiry.is_expired(sample, due_ns):
                    raise Violation(f"S21: {node.name} still holds {sample[:6]}, which has expired")

    def _check_masters(self, nodes: list[SimNode], name: str, holdings: dict[str, Holding]) -> None:
        """L1, L2, L4: one master per role, known to all; all complete; nothing left to resolve."""
        for role in sorted({node.settings.role for node in nodes}):
            members = {node.name: holdings[node.name] for node in nodes if node.settings.role == role}
            awake = {member: held for member, held in members.items() if held.phase is not Phase.DORMANT}
            may_lead = any(held.can_lead for held in awake.values())
            leaders = [member for member, held in awake.items() if held.leads]
            if len(leaders) != (1 if may_lead else 0):
                raise Violation(f"L1: {name} of role {role} is led by {leaders or 'none'}")
            for member, held in awake.items():
                if may_lead and (held.master != leaders[0] or not held.is_agreed):
                    raise Violation(f"L1: {member} follows {held.master or 'none'} and not {leaders[0]}")
                if may_lead and not held.is_complete:
                    raise Violation(f"L2: {member} is {held.phase.name} and not complete")
        for node in nodes if self._profile.merge is not MergePolicy.IGNORE else ():
            keeper = node.core.keepers.get(name) if node.core else None
            if keeper and keeper.conflicts:
                raise Violation(f"L4: {node.name} still has {keeper.conflicts}")

    def _check_sets(self, holdings: dict[str, Holding], nodes: list[SimNode]) -> None:
        complete = {name: held for name, held in holdings.items() if held.is_complete}
        for name, held in holdings.items():
            for sample in held.set:
                if sample.digest not in self.written:
                    raise Violation(f"S7: {name} holds {sample[:6]}, which no writer wrote")
                if sample.digest in self.forgotten:
                    raise Violation(f"S22: {name} holds {sample[:6]}, which was deleted long ago")
                if len(held.set.get(sample.instance)) > self._profile.depth:
                    raise Violation(f"L5: {name} holds more of {sample[:3]} than the {self._profile.depth} it should")
                if held.set.is_deleted(sample):
                    raise Violation(f"S16: {name} holds {sample[:6]}, which was deleted")
        if self._profile.merge is MergePolicy.IGNORE:
            sets = {(held.epoch, held.set.digest) for held in complete.values()}
            if len(sets) > len({epoch for epoch, _ in sets}):
                raise Violation(f"L3: sets of one side differ: {sorted(complete)}")
            return
        # Where no service may lead, none reconciles either; the status of the services says so.
        sources = {name: held for name, held in complete.items() if held.policy.aligner and held.master}
        if len({held.set.digest for held in sources.values()}) > 1:
            counts = {name: held.set.count for name, held in sources.items()}
            raise Violation(f"L3: the sets differ: {counts}")
        self._check_deletions(complete)
        if self._profile.merge is MergePolicy.MERGE:
            self._check_acknowledged(sources, [node for node in nodes if node.name in complete], complete)

    def _check_deletions(self, complete: dict[str, Holding]) -> None:
        """S16: a deletion that one service knows is known to all."""
        known: set[Deletion] = set().union(*(held.set.deletions for held in complete.values()))
        for name, held in complete.items():
            if held.policy.aligner and held.set.deletions != known:
                raise Violation(f"S16: {name} does not know {known - held.set.deletions}")

    def _check_acknowledged(
        self, sources: dict[str, Holding], nodes: list[SimNode], complete: dict[str, Holding]
    ) -> None:
        """S7: what any service that shares its data acknowledged is in every complete set."""
        for acknowledger in sources:
            for sample in self._acknowledged[acknowledger].values():
                for node in nodes:
                    held = complete[node.name]
                    if held.matcher.match(sample.topic) and not self._reflects(node, held, sample):
                        raise Violation(
                            f"S7: {acknowledger} acknowledged {sample[:6]} and {node.name} does not have it"
                        )
