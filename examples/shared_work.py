"""Two consumers share the jobs of a queue.  Each job is done once, also when one of the two refuses it at first."""

from __future__ import annotations

import logging
import tempfile
import threading
from collections import Counter

import pubsub_api
from pubsub_api import Event, GroupEvent

JOBS = 40
TIMEOUT_S = 60.0


class Worker:
    """Does jobs, and fails at every tenth the first time: the job comes again, to this worker or to the other."""

    done: Counter[str] = Counter()
    is_over = threading.Event()

    def on_event(self, job: GroupEvent) -> None:
        if job.value % 10 == 0 and job.attempt == 1:
            raise ConnectionError("the printer is busy")
        self.done[job.key] += 1
        if len(self.done) == JOBS:
            self.is_over.set()


def main() -> None:
    logging.getLogger("shared_subscriptions").setLevel(logging.CRITICAL)  # Refusals are wanted here.
    with (
        tempfile.TemporaryDirectory() as directory,
        pubsub_api.open("memory://jobs", log=f"sqlite://{directory}/log.db") as session,
    ):
        members = [session.group("print", "jobs/#", Worker().on_event, ordered=False) for _ in range(2)]
        for member in members:
            member.wait_ready(timeout_s=TIMEOUT_S)
        publisher = session.publisher()
        for number in range(1, JOBS + 1):
            publisher.send_event(
                Event(topic="jobs/new", table="job", key=f"job-{number}", action="create", value=number)
            )
        if not Worker.is_over.wait(TIMEOUT_S):
            raise SystemExit("not all jobs were done in time")
    print(f"{len(Worker.done)} jobs done, {max(Worker.done.values())} time each")


if __name__ == "__main__":
    main()
