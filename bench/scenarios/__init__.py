"""The scenarios, one module each: a function from a plan and a driver's name to an outcome."""

from __future__ import annotations

from collections.abc import Callable

from bench.plan import Outcome, Plan
from bench.scenarios import (
    changes,
    changes_further,
    commit,
    controller,
    durability,
    fanout,
    groups,
    latency,
    log,
    many_controllers,
    repair,
    service,
    slow,
    spark,
    spark_live,
    spark_memory,
    subscriptions,
    sync,
    throughput,
    topics,
)

Scenario = Callable[[Plan, str], Outcome]

SCENARIOS: dict[str, Scenario] = {
    "throughput": throughput.measure,
    "latency": latency.measure,
    "fanout": fanout.measure,
    "topics": topics.measure,
    "slow": slow.measure,
    "repair": repair.measure,
    "commit": commit.measure,
    "changes": changes.measure,
    "changes_followers": changes_further.measure_followers,
    "changes_transactions": changes_further.measure_transactions,
    "changes_service": changes_further.measure_service,
    "changes_writers": changes_further.measure_writers,
    "many_controllers": many_controllers.measure,
    "sync": sync.measure,
    "controller": controller.measure,
    "subscriptions": subscriptions.measure,
    "service": service.measure,
    "log": log.measure,
    "groups": groups.measure,
    "durability": durability.measure,
    "spark": spark.measure,
    "spark_live": spark_live.measure,
    "spark_memory": spark_memory.measure,
}
DEFAULT = ("throughput",)
