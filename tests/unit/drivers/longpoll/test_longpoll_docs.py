"""The page about the driver says what the code says.  Options, links and code blocks are checked with all pages."""

from __future__ import annotations

import pytest

from heliograph_drivers.pubsub.longpoll.core import mailbox, publisher, subscriber, wire
from tests.helpers import documents

PAGE = "docs/longpoll.md"


@pytest.mark.parametrize(("position", "module"), [(0, publisher), (1, subscriber)])
def test_the_states_are_those_of_the_code(
    position: int, module: object
) -> None:  # fmt: skip
    stated = documents.tables(documents.section(PAGE, "States"))[position][1:]
    transitions = module.TRANSITIONS.items()  # type: ignore[attr-defined]
    assert [tuple(row) for row in stated] == [(a.value, b.value, after.value) for (a, b), after in transitions]


@pytest.mark.parametrize("module", [publisher, subscriber])
def test_the_table_above_the_code_is_the_code(module: object) -> None:
    first, _ = next(iter(module.TRANSITIONS))  # type: ignore[attr-defined]
    states = {state.name for state in type(first)}
    rows = [line.split() for line in (module.__doc__ or "").splitlines()]
    stated = [(row[0], row[1], row[2]) for row in rows if len(row) > 3 and row[0] in states and row[2] in states]
    joined = [
        (state.name, cause.name, after.name)
        for (state, cause), after in module.TRANSITIONS.items()  # type: ignore[attr-defined]
    ]
    assert sorted(stated) == sorted(joined)


def test_the_policies_are_those_of_the_code() -> None:
    stated = [row[0] for row in documents.table(PAGE, "Mailboxes")]
    assert stated == [policy.value for policy in mailbox.MailboxPolicy]


def test_the_methods_are_those_of_the_wire() -> None:
    assert {name.rpartition("/")[2] for name in (wire.COMMAND, wire.POLL, wire.LEAVE, wire.ASK)} <= set(
        (wire.__doc__ or "").split()
    )
