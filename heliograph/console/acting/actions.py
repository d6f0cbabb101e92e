"""What can be done through the console: each action says what it will do, and does what its command does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from heliograph.commands.history import group as group_command
from heliograph.commands.history import log as log_command
from heliograph.console.store_pages import lag_text
from pubsub_api.errors import UsageError

if TYPE_CHECKING:
    from durable_log import LogApi
    from heliograph.console.sources import ConsoleSources
    from nb_api import DbApi


class ActionPlan(NamedTuple):
    """What an action would do now."""

    sentence: str
    """From the verb on."""
    mark: str = ""
    """What it was said of.  The action is refused when its first word has changed meanwhile."""


class ConsoleAction(NamedTuple):
    title: str
    command: str
    """What does the same in a terminal, with the target in the place of ``{}``."""
    plan: Callable[[ConsoleSources, str], ActionPlan]
    """Asks, and changes nothing.  Raises HeliographError when it cannot be done."""
    act: Callable[[ConsoleSources, str, ActionPlan], str]
    """Does it, and says what was done.  Raises HeliographError."""
    is_typed: bool = False
    """It cannot be undone: the name of the target must be typed."""


def _log(sources: ConsoleSources) -> LogApi:
    found = sources.log_handle.opened
    if found is None:
        raise UsageError("the console has no log now: the page of the log says why")
    return found


def _db(sources: ConsoleSources) -> DbApi:
    found = sources.db.opened
    if found is None:
        raise UsageError("the console has no database now: the overview says why")
    return found


def _wish(change: str, sentence: str, done: str) -> ConsoleAction:
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
        raise UsageError("the form does not say up to where letters are redriven")
    found = redriving.redrive(_log(sources), target, until=int(until))
    return group_command.redriven_text(target, found)


def _plan_destroy(sources: ConsoleSources, target: str) -> ActionPlan:
    from heliograph.console.sources import OFFSETS_MAX
    from shared_subscriptions import groups

    log = _log(sources)
    lag = lag_text(groups.show(log, target, offsets_max=OFFSETS_MAX))
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
    return ActionPlan(f"turn what is not sealed, {size:,} bytes, into Parquet segments now")


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
        raise UsageError(f"member {target} is not silent: it would tell of itself again")
    return ActionPlan(f"forget member {target}, which is silent. If it lives after all, it tells of itself again")


def _forget(sources: ConsoleSources, target: str, plan: ActionPlan) -> str:
    del plan
    _db(sources).forget_reports([target])
    return f"forgot member {target}"


ACTIONS: Mapping[str, ConsoleAction] = {
    "pause": _wish("pause", "pause group {}: nothing is delivered, and events go on being kept", "is paused"),
    "resume": _wish("resume", "resume group {}: end a pause or a drain", "is active"),
    "drain": _wish("drain", "drain group {}: what is there now is delivered, and nothing after it", "is draining"),
    "redrive": ConsoleAction("Redrive dead letters", "heliograph group redrive {}", _plan_redrive, _redrive),
    "destroy": ConsoleAction("Destroy", "heliograph group destroy {}", _plan_destroy, _destroy, is_typed=True),
    "seal": ConsoleAction("Seal", "heliograph log seal", _plan_seal, _seal),
    "forget": ConsoleAction("Forget", "heliograph fleet --forget-silent", _plan_forget, _forget),
}
