"""The pages of actions: the form of an action, the answer to a form, and the record of past actions.

Each form asks for the admin token.  There is no session and no cookie: a browser would send a cookie to every port of
this host, and so to servers of other users.  A foreign page does not know the token, so it cannot send a valid form.
"""

from __future__ import annotations

import logging
import shlex
import threading
import urllib.parse
from collections.abc import Mapping

from heliograph.console.acting.actions import ACTIONS, ActionPlan
from heliograph.console.acting.audit import KEPT_MAX, AuditJournal
from heliograph.console.acting.guard import TokenGuard
from heliograph.console.layout import ConsolePage
from heliograph.console.markup import Markup, command, joined, link, tag
from heliograph.console.sources import ConsoleSources
from heliograph.console.tables import Column, Query, RowsView, RowView, cell, table
from heliograph.output import clock_text, counted
from pubsub_api.errors import HeliographError
from pubsub_api.reporting.http import TEXT, HttpRequest, Page

LOG = logging.getLogger(__name__)

BODY_BYTES_MAX = 8192
_FORM = "application/x-www-form-urlencoded"
_TURN_S = 5.0
"""An action waits this long for another one that is running."""
_WHO_MAX = 80

AUDIT_COLUMNS = (
    Column("at", "When (UTC)"), Column("action", "Action"), Column("target", "Target"),
    Column("who", "By (as typed)"), Column("address", "From"), Column("outcome", "Outcome"),
)  # fmt: skip


class ActionServer:
    """Does what forms ask for, one action at a time.  May be called from any thread."""

    def __init__(self, sources: ConsoleSources, token: str) -> None:
        self._sources = sources
        self._turn = threading.Lock()
        self._planning = threading.Lock()
        self.guard = TokenGuard(token)
        self.journal = AuditJournal()

    # -- pages

    def form(self, sources: ConsoleSources, path: str, query: Query) -> ConsolePage:
        """The form of the action ``do`` on ``target``, with a sentence about what it would do now."""
        name, target = query.get("do", ""), query.get("target", "")
        action = ACTIONS.get(name)
        if action is None:
            unknown = tag("p", f"There is no action {name!r}. ", _back())
            return ConsolePage("Action", {"plan": unknown}, is_live=False)
        title = f"{action.title}: {target}"
        if not self._planning.acquire(timeout=_TURN_S):  # one plan at a time: it may read much of the log
            busy = tag("p", "The console is busy with another form: try again.", class_="empty")
            return ConsolePage(title, {"plan": busy}, is_live=False)
        try:
            plan = action.plan(sources, target)
        except HeliographError as error:
            refused = tag("p", f"It cannot be done: {error}. ", _back(), class_="empty")
            return ConsolePage(title, {"plan": refused}, is_live=False)
        finally:
            self._planning.release()
        typed = tag(
            "label", "Type the name to confirm ", tag("input", name="typed", required=True, autocomplete="off")
        ) if action.must_type_target else None  # fmt: skip
        form = tag(
            "form",
            tag("p", tag("strong", f"This will {plan.sentence}.")),
            tag("p", "The same in a terminal: ", command(action.command.format(shlex.quote(target)))),
            *(tag("input", type="hidden", name=key, value=value)
              for key, value in (("do", name), ("target", target), ("mark", plan.mark))),
            typed,
            tag("label", "Your name, for the record ",
                tag("input", name="who", required=True, maxlength=_WHO_MAX, autocomplete="username")),
            tag("label", "Admin token ",
                tag("input", type="password", name="token", required=True, autocomplete="current-password")),
            tag("button", action.title, type="submit"),
            link("/actions", "Do nothing"),
            method="post", action=path, class_="ask",
        )  # fmt: skip
        return ConsolePage(title, {}, form, is_live=False)

    def past_actions(self, sources: ConsoleSources, path: str, query: Query) -> ConsolePage:
        """The page of past actions, newest first."""
        del sources
        records = self.journal.newest()
        rows = RowsView(
            records,
            lambda one: RowView([
                cell(clock_text(one.at_ns)), cell(one.action), cell(one.target), cell(one.who), cell(one.address),
                cell(one.outcome, tag("span", one.outcome, class_=f"state {'good' if one.is_done else 'bad'}")),
            ]),
        )  # fmt: skip
        made = table(path, query, AUDIT_COLUMNS, rows, caption=f"Actions, the newest {KEPT_MAX}",
                     empty="Nothing was done since the console began.")  # fmt: skip
        wrong = counted(self.guard.failures, "wrong token")
        note = tag("p", f"Source: the console itself. {wrong} since it began. The log of the console has all actions.",
                   class_="source")  # fmt: skip
        return ConsolePage("Actions", {"done": joined((note, made))})

    # -- forms

    def answer(self, request: HttpRequest, address: str) -> Page:
        """Do the action of a form that was sent.  Blocks until it is done."""
        if not is_own_form(request.headers):
            return Page(403, TEXT, "the form was not sent from a page of this console\n")
        fields = _fields(request.body)
        action = ACTIONS.get(fields.get("do", ""))
        if action is None:
            return Page(404, TEXT, "there is no such action\n")
        verdict = self.guard.check(fields.get("token", ""))
        if verdict == "wait":
            left = f"{self.guard.wait_s + 1:.0f}"
            return Page(429, TEXT, f"too many wrong tokens: all requests are refused for {left} s\n",
                        {"Retry-After": left})  # fmt: skip
        if verdict == "wrong":
            LOG.warning("The console got a wrong admin token from %s; %d since its start.", address,
                        self.guard.failures)  # fmt: skip
            return Page(403, TEXT, "this is not the admin token; nothing was done\n")
        name, target = fields["do"], fields.get("target", "")
        outcome, is_done = self._outcome(name, target, fields)
        self.journal.write(
            address=address, who=fields.get("who", "").strip()[:_WHO_MAX] or "no name given", action=name,
            target=target, outcome=outcome, is_done=is_done,
        )  # fmt: skip
        return Page(303, TEXT, f"{outcome}\n", {"Location": "/actions"})

    def _outcome(self, name: str, target: str, fields: Mapping[str, str]) -> tuple[str, bool]:
        action = ACTIONS[name]
        if action.must_type_target and fields.get("typed", "") != target:
            return "refused: another name was typed", False
        if not self._turn.acquire(timeout=_TURN_S):
            return "refused: another action is running", False
        try:
            plan = action.plan(self._sources, target)
            if not _is_same(plan, fields.get("mark", "")):
                return "refused: it has changed since it was asked for", False
            return action.act(self._sources, target, plan._replace(mark=fields.get("mark", ""))), True
        except HeliographError as error:
            return f"failed: {error}", False
        except Exception as error:
            LOG.exception("The action %s cannot be done.", name)
            return f"failed, please report it: {type(error).__name__}: {error}", False
        finally:
            self._turn.release()


def is_own_form(headers: Mapping[str, str]) -> bool:
    """Whether a form comes from a page of this console.  A browser names the origin of a form, and no page can forge
    it.  A client that is no browser names none; it needs the token as well."""
    site, origin = headers.get("sec-fetch-site", "same-origin"), headers.get("origin")
    is_from_here = origin is None or origin == f"http://{headers.get('host', '')}"
    return site == "same-origin" and is_from_here and headers.get("content-type", "").partition(";")[0].strip() == _FORM


def _is_same(plan: ActionPlan, mark: str) -> bool:
    return plan.mark.split()[:1] == mark.split()[:1]


def _fields(body: bytes) -> dict[str, str]:
    try:
        found = urllib.parse.parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20)
    except ValueError:
        return {}
    return dict(reversed(found))


def _back() -> Markup:
    return link("/actions", "What was done")
