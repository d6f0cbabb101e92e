"""The page on shared subscriptions says what the code says."""

from __future__ import annotations

import msgspec

from shared_subscriptions import GroupSubscriberStatistics
from shared_subscriptions.core.consuming.borrower import REACTIONS
from shared_subscriptions.core.leading.partitions import TRANSITIONS
from tests.helpers import documents
from tests.helpers.documents import plain
from tests.helpers.statistic_fields import fields_of

PAGE = "docs/shared-subscriptions.md"


def test_the_reactions_of_a_borrower_are_those_of_the_code() -> None:
    stated = [tuple(row) for row in documents.table(PAGE, "A borrower")]
    assert stated == [
        (state.value, str(msgspec.inspect.type_info(kind).tag), reaction.removeprefix("_"))  # type: ignore[attr-defined]
        for (state, kind), reaction in REACTIONS.items()
    ]


def test_the_life_of_a_partition_is_that_of_the_code() -> None:
    stated = [tuple(row) for row in documents.table(PAGE, "A partition at the leader")]
    assert stated == [(before.value, cause.value, after.value) for (before, cause), after in TRANSITIONS.items()]


def test_every_statistic_is_explained() -> None:
    stated = documents.table(PAGE, "GroupSubscriberStatistics")
    assert [plain(row[0]) for row in stated] == list(fields_of(GroupSubscriberStatistics))
    assert all(row[1] for row in stated)
