"""A standalone Spark cluster of real processes on loopback: a master and workers, started from the pyspark package."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pyspark

from spark_pipeline.sessions.java import find_java
from tests.helpers.servers import free_port
from tests.helpers.waiting import wait_until
from tests.spark.processes import kill_executor

_DEPLOY = "org.apache.spark.deploy"
_OWN_MOUNTS = ("unshare", "--map-root-user", "--mount", "sh", "-c")


def can_hide_directories() -> bool:
    """Whether a process here may be given mounts of its own."""
    return (
        shutil.which("unshare") is not None
        and not subprocess.run([*_OWN_MOUNTS, "mount -t tmpfs none /mnt"], check=False, capture_output=True).returncode
    )


class SparkCluster:
    """Start it in a ``with``; `kill_worker` is a SIGKILL to a worker and to the executors it started."""

    def __init__(self, directory: pathlib.Path, *, workers: int, hidden: pathlib.Path | None = None) -> None:
        """Of what is in the directory ``hidden`` no worker sees anything: each has an empty disk of its own there."""
        self._directory = directory
        self._port = free_port()
        self._workers = workers
        self._hidden = hidden
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> SparkCluster:
        self._start("master", f"{_DEPLOY}.master.Master", "--host", "127.0.0.1", "--port", str(self._port),
                    "--webui-port", "0")  # fmt: skip
        self._await("master", "I have been elected leader")
        for number in range(self._workers):
            name = f"worker-{number}"
            self._start(name, f"{_DEPLOY}.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g",
                        "--webui-port", "0", "--work-dir", str(self._directory / name), self.url)  # fmt: skip
            self._await(name, "Successfully registered with master")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            self._kill(process)

    def kill_worker(self, number: int) -> None:
        self._kill(self._processes.pop(f"worker-{number}"))

    def kill_executor(self, choice: int) -> bool:
        """SIGKILL to one of the executors, whose worker starts another; False when there is none now."""
        return kill_executor([process.pid for process in self._processes.values()], choice)

    def _start(self, name: str, *arguments: str) -> None:
        home = os.path.dirname(pyspark.__file__)
        environment = os.environ | {
            "JAVA_HOME": str(find_java().home), "SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "512m",
        }  # fmt: skip
        with open(self._directory / f"{name}.log", "wb") as log:
            # A session of its own, so that the executors die with their worker.
            self._processes[name] = subprocess.Popen(
                [*self._apart(name), os.path.join(home, "bin", "spark-class"), *arguments],
                stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
            )  # fmt: skip

    def _apart(self, name: str) -> list[str]:
        """What starts a program so that it does not see the directory that is hidden."""
        if self._hidden is None or name == "master":
            return []
        return [*_OWN_MOUNTS, f'mount -t tmpfs none "{self._hidden}" && exec "$@"', "sh"]

    def _await(self, name: str, words: str) -> None:
        def has_said_so() -> bool:
            assert self._processes[name].poll() is None, f"{name} ended: {self._log(name)[-2000:]}"
            return words in self._log(name)

        wait_until(has_said_so, 60, f"{name}: {words}")

    def _log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(errors="replace")

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
