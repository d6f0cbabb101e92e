"""How tests are spread over processes.

Those of one file stay together, in order, because they share servers; those that use the Spark session of the tests do
because Java takes as long as many of them, and those that are about the code itself because they read all of it.  What
takes longest begins first: begun last, it would keep one process busy while the others have nothing left.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

SPARK_STREAMS = "streams of Spark"
SPARK_REST = "rest of Spark"
_SPARK_STREAMS = tuple(f"tests/spark/test_{name}.py" for name in ("group_source", "job_kills", "kills", "source_sink"))

CODE = "the code itself"
_CODE = tuple(f"tests/unit/house/test_{name}.py" for name in ("code_pages", "docs", "import_rules", "tidy"))

LONGEST = (
    SPARK_REST,
    "tests/functional/house/test_docs_code.py",
    SPARK_STREAMS,
    "tests/functional/durability_service/test_durability.py",
    CODE,
    "tests/functional/durability_service/test_durability_resync.py",
    "tests/functional/shared_subscriptions/test_groups.py",
    "tests/functional/heliograph/test_cli.py",
    "tests/functional/shared_subscriptions/test_groups_recording.py",
    "tests/conformance/test_db_etcd.py",
    "tests/functional/shared_subscriptions/test_groups_handlers.py",
    "tests/conformance/test_log_postgres.py",
    "tests/functional/pubsub_api/test_beginnings.py",
    "tests/functional/house/test_scarce_resources.py",
    "tests/functional/publisher_service/test_service_faults.py",
    "tests/functional/heliograph/test_cli_fleet.py",
    "tests/unit/house/test_bench_nb.py",
    "tests/conformance/test_db_postgres.py",
    "tests/conformance/test_db_etcd_cluster.py",
    "tests/functional/durable_log/test_log_objects.py",
    "tests/functional/pubsub_api/test_repair.py",
    "tests/functional/pubsub_api/test_process_faults.py",
    "tests/unit/durability_service/test_durability_simulator.py",
    "tests/conformance/test_db_redis.py",
    "tests/functional/nb_api/test_lost_histories.py",
    "tests/functional/drivers/test_db_etcd_cluster.py",
    "tests/conformance/test_log_redis.py",
    "tests/functional/durability_service/test_durability_cuts.py",
    "tests/functional/house/test_tutorial.py",
    "tests/functional/durable_log/test_log_redis_sites.py",
    "tests/functional/house/test_wheel.py",
    "tests/unit/pubsub_api/test_simulator.py",
    "tests/functional/drivers/test_longpoll_driver.py",
    "tests/conformance/test_db_drivers.py",
    "tests/functional/nb_api/test_verifying.py",
    "tests/unit/durability_service/test_durability_stored_sets.py",
    "tests/functional/heliograph/test_cli_log.py",
    "tests/conformance/test_log_sqlite.py",
    "tests/unit/house/test_bench_changes.py",
    "tests/functional/durable_log/test_log_storm.py",
    "tests/unit/house/test_bench.py",
    "tests/conformance/test_zenoh.py",
    "tests/functional/durability_service/test_durability_processes.py",
    "tests/functional/durable_log/test_log_servers.py",
    "tests/functional/pubsub_api/test_history.py",
    "tests/functional/durability_service/test_durability_behind.py",
    "tests/functional/durability_service/test_durability_stored_sets.py",
    "tests/functional/shared_subscriptions/test_groups_delivery.py",
    "tests/functional/nb_api/test_nb_kills.py",
    "tests/functional/drivers/test_redis_driver.py",
    "tests/conformance/test_longpoll.py",
    "tests/functional/heliograph/test_cli_durability.py",
    "tests/functional/drivers/test_db_etcd.py",
    "tests/functional/publisher_service/test_service_late_database.py",
    "tests/unit/pubsub_api/test_fuzz_frames.py",
    "tests/functional/heliograph/test_deployment.py",
    "tests/functional/publisher_service/test_service_forking.py",
    "tests/functional/durability_service/test_durability_crowd.py",
    "tests/functional/durable_log/test_log_crashes.py",
)
"""What takes longest, by `unit_of`, the longest first; the order of the rest does not matter."""

_PLACES = {unit: place for place, unit in enumerate(LONGEST)}


def unit_of(nodeid: str) -> str:
    """What runs in one process: a file, those that share the syntax trees of a process, or one of two halves of those
    that share its Spark session."""
    file = nodeid.partition("::")[0]
    if file in _CODE:
        return CODE
    if not file.startswith("tests/spark/"):
        return file
    return SPARK_STREAMS if file in _SPARK_STREAMS else SPARK_REST


def place_of(nodeid: str) -> int:
    """Tests are handed out in this order."""
    return _PLACES.get(unit_of(nodeid), len(_PLACES))


class UnitScheduling(LoadScopeScheduling):
    """Gives out unit by unit."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
