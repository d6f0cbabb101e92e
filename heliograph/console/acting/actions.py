"""The actions of the console: each describes what it will do, and does the same as a command of `heliograph`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from heliograph.commands.history import group as group_command
from heliograph.commands.history import log as log_command
from pubsub_api.errors import UsageError

if TYPE_CHECKING:
    from durable_log import LogApi
    from heliograph.console.sources import ConsoleSources
    from nb_api import DbApi


class ActionPlan(NamedTuple):
    """What an action would do now."""

    sentence: str
    """Begins with a verb."""
    mark: str = ""
    """The state for which the plan was made.  The form sends it back, and the action is refused when the first word
    of it has changed meanwhile."""


class ConsoleAction(NamedTuple):
    title: str
    command: str
    """The command that does the same in a terminal, with the target in the place of ``{}``."""
    plan: Callable[[ConsoleSources, str], ActionPlan]
    """Reads only.  Raises HeliographError when the action cannot be done."""
    act: Callable[[ConsoleSources, str, ActionPlan], str]
    """Does it, and returns a sentence about what was done.  Raises HeliographError."""
    must_type_target: bool = False
    """The user must type the name of the target, because the action cannot be undone."""


def _log(sources: ConsoleSources) -> LogApi:
    found = sources.log_handle.opened
    if found is None:
        raise UsageError("the console cannot reach the log now; see the page Log for the reason")
    return found


def _db(sources: ConsoleSources) -> DbApi:
    found = sources.db.opened
    if found is None:
        raise UsageError("the console cannot reach the database now; see the overview for the reason")
    return found


def _group_action(change: str, sentence: str, done: str) -> ConsoleAction:
    def plan(sources: ConsoleSources, target: str) -> ActionPlan:
        from shared_subscriptions import groups

        declared = groups.get(_log(sources), target)
        return ActionPlan(f"{sentence.format(target)}. It is {declared.wish.value} now", declared.incarnation)

    def act(sources: ConsoleSources, target: str, plan: ActionPlan) -> str:
        from shared_subscriptions import groups

        del plan
        getattr(groups, change)(_log(sources), target)
        return f"group {target} {done}"

    return ConsoleAction(change.capitalize(), f"heliograph group {change} {{}}", plan, act)


def _plan_redrive(sources: ConsoleSources, target: str) -> ActionPlan:
    from shared_subscriptions import redriving

    found = redriving.redrive(_log(sources), target, is_dry=True)
    if not found.letters + found.unfit:
        raise UsageError(f"group {target} has no dead letter that was not redriven")
    return ActionPlan(group_command.redrive_text(target, found), f"{found.first} {found.until}")


def _redrive(sources: ConsoleSources, target: str, plan: ActionPlan) -> str:
    from shared_subscriptions import redriving

    until = plan.mark.partition(" ")[2]
    if not (until.isascii() and until.isdecimal() and len(until) < 20):
        raise UsageError("the form does not name the offset up to which letters are redriven")
    found = redriving.redrive(_log(sources), target, until=int(until))
    return group_command.redriven_text(target, found)


def _plan_destroy(sources: ConsoleSources, target: str) -> ActionPlan:
    from heliograph.console.sources import OFFSETS_MAX
    from shared_subscriptions import groups

    log = _log(sources)
    lag = group_command.lag_text(groups.show(log, target, offsets_max=OFFSETS_MAX))
    return ActionPlan(
        f"destroy group {target} and its progress; its lag is {lag}. It cannot be undone",
        groups.get(log, target).incarnation,
    )


def _destroy(sources: ConsoleSources, target: str, plan: ActionPlan) -> str:
    from shared_subscriptions import groups

    del plan
    groups.destroy(_log(sources), target)
    return f"group {target} is destroyed"


def _plan_seal(sources: ConsoleSources, target: str) -> ActionPlan:
    log = _log(sources)
    if target != log.identity:
        raise UsageError(f"the log of the console is {log.identity}, not {target}")
    size = sum(state.bytes for state in log.state())
    return ActionPlan(f"write all unsealed events, {size:,} bytes, into Parquet segments now")


def _seal(sources: ConsoleSources, target: str, plan: ActionPlan) -> str:
    del target, plan
    log = _log(sources)
    return log_command.seal(log, range(log.shards))[1]


def _plan_forget(sources: ConsoleSources, target: str) -> ActionPlan:
    found = sources.database.sample.value
    members = {one.key: one for one in found.fleet.members} if found is not None else {}
    if target not in members:
        raise UsageError(f"there is no member {target}")
    if "silent" not in members[target].states:
        raise UsageError(f"member {target} is not silent: it would report again")
    return ActionPlan(f"forget member {target}, which is silent. If it still runs, it reports again")


def _forget(sources: ConsoleSources, target: str, plan: ActionPlan) -> str:
    del plan
    _db(sources).forget_reports([target])
    return f"forgot member {target}"


ACTIONS: Mapping[str, ConsoleAction] = {
    "pause": _group_action("pause", "pause group {}: nothing is delivered, events are still kept", "is paused"),
    "resume": _group_action("resume", "resume group {}: end a pause or a drain", "is active"),
    "drain": _group_action(
        "drain", "drain group {}: the events that are there now are delivered, and no later ones", "is draining"
    ),
    "redrive": ConsoleAction("Redrive dead letters", "heliograph group redrive {}", _plan_redrive, _redrive),
    "destroy": ConsoleAction("Destroy", "heliograph group destroy {}", _plan_destroy, _destroy, must_type_target=True),
    "seal": ConsoleAction("Seal", "heliograph log seal", _plan_seal, _seal),
    "forget": ConsoleAction("Forget", "heliograph fleet --forget-silent", _plan_forget, _forget),
}
