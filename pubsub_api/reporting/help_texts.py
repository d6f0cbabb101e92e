"""What each metric means.  Generated from the documentation by ``python -m tests.helpers.code_map``."""

from __future__ import annotations

HELP: dict[str, dict[str, str]] = {
    "publisher": {
        "name": "Of a publisher: the publisher's stable name.",
        "guid": "Of a publisher: its identity in this life, in hex.",
        "address": "Of a publisher: where subscribers can listen to it.",
        "events": "Of a publisher: events that got a number.",
        "frames": "Of a publisher: DATA frames made of them.",
        "hellos": "Of a publisher: hellos and goodbyes sent.",
        "streams": "Of a publisher: topics used.",
        "backlog_bytes": "Of a publisher: encoded events not yet handed to the transport.",
        "send_failures": "Of a publisher: frames that the transport refused for now; they stay in the cache.",
        "refused": (
            "Of a publisher: events that the transport refused for lack of permission; they are not kept, and the "
            "topic raises NotPermitted for max_idle_time."
        ),
        "resent": "Of a publisher: frames sent again because too few caches held them.",
        "questions.queries": "Of a publisher: questions that arrived.",
        "questions.bad_queries": "Of a publisher: questions that could not be understood.",
        "questions.bad_replies": (
            "Of a publisher: answers about what caches hold that were refused, such as frames with another key."
        ),
        "questions.handler_errors": (
            "Of a publisher: questions on which the publisher itself raised: a bug in this library."
        ),
        "cache.frames": "Of a publisher: frames in its cache now.",
        "cache.bytes": "Of a publisher: their size.",
        "cache.evictions": "Of a publisher: frames that left the cache.",
        "driver": "Of a publisher: what the driver dropped, refused or did again, by names of its own.",
    },
    "subscriber": {
        "received": "Of a subscriber: events handed to the program.",
        "delivered": "Of a subscriber: events taken into order; those not yet received wait in the queue.",
        "frames": "Of a subscriber: DATA frames that arrived, repeated and unwanted ones included.",
        "lag": "Of a subscriber: events in the queue before the callback.",
        "queue_bytes": "Of a subscriber: size of the frames in that queue.",
        "lost": (
            "Of a subscriber: events in holes that were given up; a resync covers them. Holes that open while "
            "that resync is on its way are covered by it and not counted."
        ),
        "discarded": (
            "Of a subscriber: events dropped because the callback did not keep up and there was no room left; a "
            "resync covers them."
        ),
        "resyncs": "Of a subscriber: resyncs told to the program.",
        "freezes": "Of a subscriber: times this process itself stood still.",
        "links_up": "Of a subscriber: links that are up now.",
        "links_down": "Of a subscriber: addresses that are listened to, and that cannot be reached now.",
        "callback_errors": "Of a subscriber: exceptions that callbacks raised.",
        "receiver_errors": (
            "Of a subscriber: calls of the driver in which the subscriber itself raised: a bug in this library."
        ),
        "bad_frames": "Of a subscriber: frames refused, by the name of the error.",
        "driver": "Of a subscriber: what the driver dropped, refused or did again, by names of its own.",
        "delay_seconds": (
            "Of a subscriber: from the publication of the newest event of a call until the callback was called, "
            "by the clocks of both hosts: a histogram."
        ),
        "callback_seconds": "Of a subscriber: how long calls of the event callback took: a histogram.",
        "intake.hellos": "Of a subscriber: hellos that arrived.",
        "intake.duplicates": "Of a subscriber: events that came again and were dropped.",
        "intake.repeats": (
            "Of a subscriber: events that came again, or after they had been given up, and were handed over; only "
            "with takes_repeats."
        ),
        "intake.unwanted": "Of a subscriber: frames of topics that no filter selects: the transport delivers too much.",
        "intake.foreign": "Of a subscriber: messages without envelope that were passed on.",
        "intake.foreign_discarded": "Of a subscriber: such messages dropped because the queue was full.",
        "intake.put_off": "Of a subscriber: times it came late for what was due, and first read what had come.",
        "intake.relieved": (
            "Of a subscriber: callbacks that lasted, so that the driver went on receiving in another thread."
        ),
        "repair.gaps": "Of a subscriber: holes that opened.",
        "repair.closed_by_waiting": "Of a subscriber: holes that late frames closed.",
        "repair.closed_by_repair": "Of a subscriber: holes that caches closed.",
        "repair.repaired": "Of a subscriber: events that came from caches to close a hole; history is not counted.",
        "repair.skipped": "Of a subscriber: numbers that a publisher left out on purpose and said so.",
        "repair.unparked": (
            "Of a subscriber: events of a stream with a hole that found no room, and are asked for in their turn."
        ),
        "repair.parked_bytes": (
            "Of a subscriber: size of the frames that wait behind holes, or for room in the queue before the callback."
        ),
        "repair.queries": "Of a subscriber: questions sent to close holes.",
        "repair.replies": "Of a subscriber: parts of answers that arrived, also to the questions of joins.",
        "repair.late_replies": "Of a subscriber: parts of answers to questions that were closed already.",
        "repair.questions_evicted": (
            "Of a subscriber: questions given up because more than 1000 waited; holes are asked for again in "
            "their turn."
        ),
        "peers.publishers": "Of a subscriber: publishers known now.",
        "peers.publishers_forgotten": "Of a subscriber: publishers not heard of for long, whose state was dropped.",
        "peers.restarts": "Of a subscriber: publishers that came back under a new GUID.",
        "peers.silences": "Of a subscriber: publishers that fell silent without a goodbye.",
        "peers.contradictions": (
            "Of a subscriber: times a publisher contradicted what had been heard of it, so that a stream was "
            "started again."
        ),
        "peers.verified_reconnects": "Of a subscriber: links that came back and needed no resync.",
        "peers.streams": "Of a subscriber: streams known now.",
        "peers.streams_evicted": "Of a subscriber: streams forgotten because of streams_max.",
        "history.events": "Of a subscriber: events delivered from history.",
        "history.duplicates": (
            "Of a subscriber: events not delivered because they, or newer ones of their object, had been; only "
            "with durability."
        ),
        "history.reads": "Of a subscriber: how often history was read.",
        "history.forgotten": "Of a subscriber: objects of which it is not remembered any more what was delivered.",
        "history.errors": (
            "Of a subscriber: calls of the program with history that raised, and attempts to read it that did."
        ),
    },
    "cache": {
        "frames": "Of a reliability cache: frames kept now.",
        "bytes": "Of a reliability cache: their size.",
        "stored": "Of a reliability cache: frames taken in.",
        "evicted": "Of a reliability cache: frames that left to make room, or because of their age.",
        "duplicates": "Of a reliability cache: frames that were there already.",
        "unwanted": "Of a reliability cache: frames of topics that it was not asked to keep.",
        "queries": "Of a reliability cache: questions answered.",
        "bad_frames": "Of a reliability cache: frames and questions refused.",
        "from_store": (
            "Of a reliability cache: frames that it did not have and the store behind it, such as a durable log, had."
        ),
        "store_errors": "Of a reliability cache: times that the store could not be asked.",
        "receiver_errors": (
            "Of a reliability cache: calls of the driver in which the cache itself raised: a bug in this library."
        ),
        "handler_errors": "Of a reliability cache: the same, of questions.",
        "driver": (
            "Of a reliability cache: what the driver dropped, refused or did again, by names of its own, both "
            "ends together."
        ),
    },
    "member": {
        "delivered": "Of a member of a group: events handed to the user.",
        "redelivered": "Of a member of a group: of these, deliveries beyond the first, as far as the group knows.",
        "acknowledged": "Of a member of a group: events that are done, dead letters not counted.",
        "failed": "Of a member of a group: attempts that ended in a refusal or an error of the callback.",
        "timed_out": (
            "Of a member of a group: events taken back because they were with the program for longer than "
            "handler_timeout."
        ),
        "hung": "Of a member of a group: calls of the program that have not returned since.",
        "dead_letters": "Of a member of a group: events that went to the dead letters.",
        "late": "Of a member of a group: settled after the partition was lost: the group may deliver them again.",
        "expired": (
            "Of a member of a group: offsets that retention dropped before they were delivered, by age, size or "
            "topic, for each lane: at most so many events are lost. A warning in the log says so too, once a "
            "minute at most, and names group, shard and offsets."
        ),
        "streams": "Of a member of a group: partitions, or portions of queues, held now.",
        "waiting": "Of a member of a group: events read and not settled.",
        "callback_errors": "Of a member of a group: calls of the user that raised.",
        "is_leading": "Of a member of a group: groups that this process leads.",
        "missing": (
            "Of a member of a group: events that were lost to this process as leader, and that no cache had: the "
            "log, and so the group, lacks them."
        ),
        "standing_by": (
            "Of a member of a group: groups whose leader this process stands by for: it keeps what was published "
            "last, should the leader die."
        ),
        "links.grants": "Of a member of a group: partitions that were granted so far.",
        "links.resets": "Of a member of a group: how often the lease or the leader was lost and everything began anew.",
        "links.protocol_errors": (
            "Of a member of a group: failures in talking to a leader, apart from links that break."
        ),
        "links.bad_messages": (
            "Of a member of a group: connections to a leader that were closed because of what came through them."
        ),
        "links.link_failures": (
            "Of a member of a group: connections to a leader that were lost, or could not be made; each is made again."
        ),
        "log.errors": "Of a member of a group: failed reads of the log; they are tried again.",
        "log.damaged": (
            "Of a member of a group: ranges of the log that this member came to and could not read, each counted once."
        ),
        "log.went_back": (
            "Of a member of a group: shards that were found in an older state than this member had read, each "
            "time: see below."
        ),
        "log.undecodable": "Of a member of a group: events left out because their frame cannot be decoded.",
        "log.park_failures": "Of a member of a group: dead letters that could not be written; each is tried again.",
    },
    "nb": {
        "writes": "Of a writer: transactions committed.",
        "unchanged": (
            "Of a writer: updates and puts that changed nothing, so that nothing was written and nothing told."
        ),
        "conflicts": "Of a writer: updates tried again because another writer was faster.",
        "mismatches": (
            "Of a writer: values that did not fit the class of their table: refused, or read and left as they are."
        ),
        "handover.committed": "Of a writer: changes that this process committed.",
        "handover.published": (
            "Of a writer: of these, given to the publisher, by the thread that committed or by the one that confirms."
        ),
        "handover.confirmed": "Of a writer: of these, removed from the outbox.",
        "handover.left": "Of a writer: changes left to the sweeper, because the bus or the queue did not take them.",
        "handover.refused": (
            "Of a writer: of these, changes that cannot be published; the sweeper tries them again and names them."
        ),
        "handover.failures": "Of a writer: how often publishing or confirming failed.",
        "handover.waits": "Of a writer: how often a writer waited because the queue was full.",
        "sweeper.sweeps": "Of a writer: how often the outbox was looked through.",
        "sweeper.swept": "Of a writer: changes published because their writers did not.",
        "sweeper.refused": "Of a writer: changes that the newest sweep could not publish; they stay in the outbox.",
        "sweeper.failures": "Of a writer: sweeps that failed; the next one tries again.",
        "compactor.compactions": "Of a writer: how often the feed was shortened.",
        "compactor.dropped": "Of a writer: changes that left the feed.",
        "compactor.failures": "Of a writer: compactions that failed; the next one tries again.",
        "commit_seconds": "Of a writer: how long commits took, those that failed included: a histogram.",
    },
    "local_cache": {
        "objects": "Of a local cache: objects in the copy.",
        "tombstones": "Of a local cache: deleted objects that are remembered.",
        "position": "Of a local cache: the copy holds everything up to this revision, and much after it.",
        "newest": "Of a local cache: the highest revision of what was heard or read.",
        "followed": "Of a local cache: which tables, None for all, and which topics the copy is of.",
        "is_synced": (
            "Of a local cache: the copy is complete: no resync is waiting, and the feed, if it is followed, can "
            "be read."
        ),
        "is_provisional": "Of a local cache: the database cannot be reached, and the resync source stands in for it.",
        "news.created": "Of a local cache: objects that were new.",
        "news.updated": "Of a local cache: objects that got a newer version.",
        "news.deleted": "Of a local cache: objects that were deleted.",
        "news.stale": (
            "Of a local cache: events that were not newer than the copy: repeated, late, or overtaken by a resync."
        ),
        "news.unwanted": "Of a local cache: events of tables or topics that are not followed.",
        "news.unselected": "Of a local cache: events of objects that where does not select.",
        "news.unversioned": "Of a local cache: events without a version, which cannot be compared with the copy.",
        "news.moves": "Of a local cache: deletes that were one half of a move between two followed topics.",
        "news.doubtful": (
            "Of a local cache: events refused because the tombstone that could decide was forgotten; a resync decides."
        ),
        "news.tombstones_forgotten": "Of a local cache: tombstones dropped because there were too many.",
        "syncs.snapshots": "Of a local cache: complete reads of the database.",
        "syncs.topics": "Of a local cache: reads of single topics.",
        "syncs.deltas": "Of a local cache: reads of the changes since a revision.",
        "syncs.replaced": (
            "Of a local cache: snapshots after which nothing of the old copy counted, because the database had "
            "lost its history or could not prove it."
        ),
        "syncs.unproven": (
            "Of a local cache: of these, how often it could not prove it, because what the copy had seen was "
            "compacted away."
        ),
        "syncs.escalated": "Of a local cache: deltas that were impossible, so that a snapshot was read.",
        "syncs.waits": (
            "Of a local cache: how often a delta, a read of topics or a look at the history waited for those of "
            "other caches of the process."
        ),
        "syncs.rows": "Of a local cache: objects read by snapshots.",
        "syncs.missed_changes": "Of a local cache: changes read one by one by deltas.",
        "syncs.failures": (
            "Of a local cache: attempts that failed because the database could not be read; each is made again."
        ),
        "syncs.from_source": "Of a local cache: snapshots whose objects came from the resync source.",
        "syncs.source_failures": (
            "Of a local cache: times the source could not give what was wanted, so that the database was read instead."
        ),
        "syncs.source_repairs": (
            "Of a local cache: objects that the source did not have, or not new enough, read from the database."
        ),
        "syncs.stand_ins": "Of a local cache: times the source stood in for a database that could not be reached.",
        "syncs.stand_in_doubts": (
            "Of a local cache: objects that were missing or old in the source until the database could be asked."
        ),
        "syncs.slots.held": "Of a local cache: snapshots read while holding a slot ([local_cache] snapshot_slots).",
        "syncs.slots.waits": (
            "Of a local cache: how often a snapshot waited: for other caches of the process, or for a slot."
        ),
        "syncs.slots.taken_over": "Of a local cache: slots taken from holders that showed no progress.",
        "syncs.slots.lost": "Of a local cache: slots that were taken from this cache.",
        "syncs.slots.without": (
            "Of a local cache: snapshots read without a slot: none was free for too long, or the database took no "
            "writes."
        ),
        "syncs.reasons": "Of a local cache: snapshots, reads of topics and deltas, by why they were made.",
        "verify.verifications": (
            "Of a local cache: comparisons of the copy with the database that came to a result (local-caches.md)."
        ),
        "verify.values": "Of a local cache: objects whose values were compared by these.",
        "verify.late": "Of a local cache: objects whose change was still on its way meanwhile, and came.",
        "verify.differences": "Of a local cache: objects that were otherwise in the copy than in the database.",
        "verify.repaired": "Of a local cache: of these, those that were put right at once.",
        "verify.unsettled": (
            "Of a local cache: verifications that had to be put off: the copy was being read, or the bus was away."
        ),
        "verify.failures": (
            "Of a local cache: periodic verifications that failed otherwise, as when the database cannot be reached."
        ),
        "telling.overruns": (
            "Of a local cache: times changes were not told one by one, because the program did not take them."
        ),
        "telling.callback_errors": (
            "Of a local cache: times the callback raised; it is called again with the same changes."
        ),
        "telling.untold": "Of a local cache: changes that callbacks have not taken yet.",
        "telling.subscriptions": (
            "Of a local cache: consumers: the one that the cache was made with, and those of subscribe."
        ),
        "indexes.errors": (
            "Of a local cache: times the function of an index raised, or gave what cannot be a key; that object "
            "is not in that index."
        ),
        "indexes.conflicts": "Of a local cache: times an object got a value of a unique index that another object had.",
        "mismatches": (
            "Of a local cache: versions of objects that were read or told and do not fit the class of their table."
        ),
        "bus": "Of a local cache: the numbers of its subscriber; None when it follows the feed of the database.",
    },
    "controller": {
        "has_begun": "Of a controller: the copy was complete, and runs are made.",
        "is_active": (
            "Of a controller: runs may begin: this process leads the election of the controller, or the lease on "
            "its shards lasts, or there is neither."
        ),
        "ready": "Of a controller: keys that wait for a worker.",
        "running": "Of a controller: keys that a worker has.",
        "waiting": (
            "Of a controller: keys whose time has not come: after a failure, because a run asked for it, or "
            "because they ran just now."
        ),
        "oldest_ready_s": (
            "Of a controller: how long the longest of the keys waits for a worker: when it grows, there are too "
            "few workers."
        ),
        "oldest_running_s": (
            "Of a controller: how long the longest run takes so far: when it grows and grows, the function hangs; "
            "Controller.running() names the key."
        ),
        "runs": "Of a controller: times the function was called.",
        "failures": "Of a controller: times the function raised; each key is tried again.",
        "given_up": (
            "Of a controller: of these, times it raised GiveUp, so that the key was left alone until it changes."
        ),
        "unheld_runs": (
            "Of a controller: runs during which the lease of this process was over, because it stood still or the "
            "database did not answer: another process may have worked on the key at the same time."
        ),
        "queue.retries": "Of a controller: of the runs, those after a failure.",
        "queue.requeues": "Of a controller: times the function returned RequeueAfter.",
        "queue.merged": (
            "Of a controller: changes that caused no run of their own, because their key was waiting for one already."
        ),
        "following.unmapped": (
            "Of a controller: objects whose owners are not known, because the function that tells them raised; it "
            "is called again."
        ),
        "following.mapping_errors": "Of a controller: times a function of owners raised.",
        "following.complete_readings": (
            "Of a controller: times every object of the copy was read: at the start, and when changes were not "
            "told one by one."
        ),
        "following.ends_forgotten": (
            "Of a controller: deletes of keys of other processes that were too many to be remembered for the case "
            "that those die."
        ),
        "times.waited_s": "Of a controller: how long keys have waited for a worker, all runs together.",
        "times.waited_max_s": "Of a controller: the longest of these waits.",
        "times.run_s": "Of a controller: how long the calls took, all together.",
        "times.run_max_s": "Of a controller: the longest of them.",
        "times.run_seconds": "Of a controller: how long runs took: a histogram.",
    },
    "fleet": {
        "reports": "Of a process that tells the fleet: reports told.",
        "failures": (
            "Of a process that tells the fleet: reports that the database did not take, or that could not be "
            "made; the next one follows as usual."
        ),
        "bytes": "Of a process that tells the fleet: size of the newest report.",
        "members": "Of a process that tells the fleet: reports of all processes when the newest was told.",
        "clashes": "Of a process that tells the fleet: times another process was found to use the same name.",
        "forgotten": (
            "Of a process that tells the fleet: reports of others that were deleted because nothing had renewed "
            "them for a day."
        ),
    },
    "recorder": {
        "appends": "Of a recorder of a log: calls of the log; each stores many frames.",
        "frames": "Of a recorder of a log: frames handed to the log.",
        "events": "Of a recorder of a log: events stored.",
        "duplicates": (
            "Of a recorder of a log: events that the log held already, from another recorder or from a cache at "
            "the start."
        ),
        "retries": "Of a recorder of a log: appends tried again because the log could not be reached.",
        "refused": "Of a recorder of a log: frames that the log refuses, for instance because they are too large.",
        "resyncs": "Of a recorder of a log: times that the subscription told a loss, or that it might be one.",
        "lost": "Of a recorder of a log: events that a resync said are lost; they are asked for again.",
        "asked": "Of a recorder of a log: ranges of events that caches were asked for after a resync.",
        "recovered": "Of a recorder of a log: events of those lost that came after all.",
        "missing": (
            "Of a recorder of a log: events of those lost that no cache had: a hole in the log, unless another "
            "recorder fills it."
        ),
        "failed": "Of a recorder of a log: frames given up because the log is broken or closed.",
    },
    "log_maintenance": {
        "rounds": "Of a maintenance of a log: times that it looked.",
        "sealed_segments": "Of a maintenance of a log: segments written.",
        "sealed_events": "Of a maintenance of a log: events in them.",
        "dropped_by_age": "Of a maintenance of a log: offsets dropped because of retention_age.",
        "dropped_by_topic": "Of a maintenance of a log: events dropped because of retention_topics.",
        "dropped_by_bytes": "Of a maintenance of a log: offsets dropped because of retention_bytes.",
        "compacted_segments": "Of a maintenance of a log: segments written anew without what compaction removed.",
        "compacted_events": "Of a maintenance of a log: events that compaction removed.",
        "forgotten_streams": "Of a maintenance of a log: streams forgotten because they were idle for 30 days.",
        "orphans_removed": "Of a maintenance of a log: files removed that died processes had left.",
        "stamped_ahead": (
            "Of a maintenance of a log: how often something was met that had been appended while the clock was "
            "far ahead."
        ),
        "busy": "Of a maintenance of a log: rounds in which another process was at it.",
        "errors": "Of a maintenance of a log: steps, or steps for one shard, that failed and are tried again.",
    },
    "log": {
        "events": "Of a durable log: events that the log has, in all shards.",
        "bytes": "Of a durable log: size of what is not sealed, in all shards.",
        "sealed_bytes": "Of a durable log: size of the sealed segments.",
        "segments": "Of a durable log: sealed segments.",
    },
    "group": {
        "lag": (
            "Of a group of consumers: events that the group has not acknowledged; at most so many when "
            "is_lag_exact is 0."
        ),
        "is_lag_exact": "Of a group of consumers: 1 when the lag was counted to the end.",
        "oldest_seconds": "Of a group of consumers: age of the oldest event that is not acknowledged.",
        "members": "Of a group of consumers: members that its leader knows.",
        "is_led": "Of a group of consumers: 1 when the group has a leader.",
        "missing": "Of a group of consumers: events of its topics that are not in the log.",
        "expired": "Of a group of consumers: offsets that retention dropped before the group had handled them.",
    },
    "publisher_service": {
        "is_well": "Of a publisher service: 1 when the parts that do the work still turn.",
        "workers": "Of a publisher service: workers that are connected now.",
        "workers_remembered": "Of a publisher service: workers that are known by their last number.",
        "duplicate_batches": (
            "Of a publisher service: batches sent again by workers although they had been taken, and dropped."
        ),
        "unproven_batches": (
            "Of a publisher service: batches acknowledged by an earlier service whose journal was lost."
        ),
        "bad_connections": "Of a publisher service: connections closed for a bad message.",
        "refused_events": "Of a publisher service: events taken over that cannot be published.",
        "transport_failures": (
            "Of a publisher service: how often the transport refused frames; they are repaired from the cache."
        ),
        "journal_failures": "Of a publisher service: how often the journal could not be written.",
        "reload_failures": "Of a publisher service: how often the configuration could not be read again.",
        "is_elected": "Of a publisher service: 1 when this service does the upkeep of the database.",
        "database_revision": "Of a publisher service: the newest revision of the database.",
        "outbox": "Of a publisher service: changes that wait in the outbox, at most as many as are looked at.",
    },
    "durability": {
        "lag": "Of a durability service: operations that are not on disk yet.",
        "peers": "Of a durability service: other services that are connected.",
        "troubles": "Of a durability service: things that are wrong and concern the whole service.",
        "counters": "Of a durability service: what the service has done, by its own names.",
    },
    "name_space": {
        "samples": "Of a name-space of a durability service: samples in the set.",
        "is_complete": "Of a name-space of a durability service: 1 when the set is complete.",
        "is_agreed": "Of a name-space of a durability service: 1 when the services agree on the master.",
        "conflicts": "Of a name-space of a durability service: undecided conflicts between two sides of a split.",
        "joins": (
            "Of a name-space of a durability service: how often what another side had came in after this side was "
            "complete."
        ),
        "replacements": "Of a name-space of a durability service: how often this side gave way to another.",
    },
    "process": {
        "start_time_seconds": "Of a process: when the process began to report, in seconds since 1970.",
        "is_ready": "Of a process: 1 when it does its work, as /readyz says.",
        "source_failures": "Of a process: how often something of the process could not tell its numbers.",
        "trace_failures": (
            "Of a process: how often OpenTelemetry raised, so that a span or a context is missing (tracing.md)."
        ),
    },
}
