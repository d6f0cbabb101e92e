"""``heliograph simulate``: check the guarantees of the core in a simulated network, with thousands of seeds."""

from __future__ import annotations

import argparse
import collections
import time
from typing import TYPE_CHECKING, Any

from heliograph import exits, options
from heliograph.output import Output, compact, note
from heliograph.terminal.progress import Progress
from pubsub_api.errors import UsageError

if TYPE_CHECKING:
    from pubsub_api.testing.simulator import Profile, Report, SimulationFailure

DESCRIPTION = """\
Run the core of the bus, the code that runs in production, in a simulated network with a virtual clock: many publishers,
subscribers and caches; frames lost, repeated, delayed and reordered; links cut; processes crashed and restarted.  An
oracle that knows the whole state checks the guarantees at every step.

A seed decides everything in a run.  Each failure is printed with the command that replays its seed.
"""
LOG_LEVEL = "error"
EXAMPLES = """\
  heliograph simulate --seeds 20000
  heliograph simulate --seeds 5000 --first 100000 --profile chaos
  heliograph simulate --seed 4711
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_seeds(parser)
    options.add_json(parser, "the result as one JSON object")


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises UsageError for a profile that does not exist."""
    profile = _find_profile(args.profile)
    if args.seed is not None:
        return _replay(output, args.seed, profile)
    return _run_many(output, args, profile)


def _find_profile(name: str | None) -> Profile | None:
    from pubsub_api.testing.simulator import PROFILES

    if name is None:
        return None
    if name not in PROFILES:
        raise UsageError(f"there is no profile {name!r}; there are {', '.join(PROFILES)}")
    return PROFILES[name]


def _replay(output: Output, seed: int, profile: Profile | None) -> int:
    from pubsub_api.testing.simulator import SimulationFailure, simulate

    try:
        report = simulate(seed, profile)
    except SimulationFailure as failure:
        output.result({**_record(failure), "trace": failure.trace}, str(failure))
        return exits.FAILED
    if output.is_json:
        output.record(report)
    else:
        rows = [(name, value if isinstance(value, str) else compact(value)) for name, value in vars(report).items()]
        output.table(f"seed {seed}: no guarantee was broken", ("field", "value"), rows)
    return exits.OK


class _Tally:
    """Counts outcomes, and prints a failure at once."""

    def __init__(self, progress: Progress) -> None:
        self.done = 0
        self.failures: list[SimulationFailure] = []
        self.totals: collections.Counter[str] = collections.Counter()
        self._progress = progress

    def add(self, outcome: Report | SimulationFailure) -> None:
        self.done += 1
        if isinstance(outcome, AssertionError):
            self.failures.append(outcome)
            note(f"seed {outcome.seed}, profile {outcome.profile}: {outcome.what}")
        else:
            self.totals.update(
                events=outcome.events, deliveries=outcome.deliveries, resyncs=sum(outcome.resyncs.values()),
                virtual_s=int(outcome.virtual_s),
            )  # fmt: skip
        self._progress.update(self.done, f", {len(self.failures)} failed" if self.failures else "")


def _run_many(output: Output, args: argparse.Namespace, profile: Profile | None) -> int:
    from pubsub_api.testing.simulator import run_seeds

    start = time.monotonic()
    with Progress("seeds", args.seeds) as progress:
        tally = _Tally(progress)
        try:
            run_seeds(args.first, args.seeds, tally.add, profile=profile)
        finally:
            _summarize(output, args.first, tally, time.monotonic() - start)
    return exits.FAILED if tally.failures else exits.OK


def _summarize(output: Output, first: int, tally: _Tally, elapsed_s: float) -> None:
    """Print the outcome, also of a run that was interrupted."""
    if output.is_json:
        output.record(
            {
                "seeds": tally.done, "first": first, "seconds": round(elapsed_s, 3), "totals": dict(tally.totals),
                "failures": [_record(failure) for failure in tally.failures],
            }
        )  # fmt: skip
        return
    totals = ", ".join(f"{name} {value:,}" for name, value in tally.totals.items())
    output.line(f"{tally.done:,} seeds from {first} in {elapsed_s:.1f} s, {len(tally.failures)} failed; {totals}")
    for failure in tally.failures:
        output.line(f"failed: seed {failure.seed}, profile {failure.profile}: {failure.what}", style="bold red")
        output.line(f"  replay: {_replay_command(failure)}")


def _replay_command(failure: SimulationFailure) -> str:
    return f"heliograph simulate --seed {failure.seed} --profile {failure.profile}"


def _record(failure: SimulationFailure) -> dict[str, Any]:
    return {
        "seed": failure.seed,
        "profile": failure.profile,
        "what": failure.what,
        "replay": _replay_command(failure),
    }
