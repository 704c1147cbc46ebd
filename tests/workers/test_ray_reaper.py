"""Processes of Ray that are left when the process that started the cluster is killed."""

import os
import subprocess
import sys
import time

import pytest

from flbench.workers import ray_reaper

SLEEP = "import time; time.sleep(60)"


@pytest.mark.slow
def test_processes_of_the_cluster_are_ended_and_no_others(tmp_path):
    """A process of the user has the token too, and another cluster has another token.

    Titles of Ray's agents take the place of their environment. Their logs are in the folder.
    """
    environment = {**os.environ, ray_reaper.TOKEN: "of-this-cluster"}
    (tmp_path / "cluster").mkdir()

    def begin(token, *marks):
        env = {**environment, ray_reaper.TOKEN: token}
        return subprocess.Popen([sys.executable, "-I", "-S", "-c", SLEEP, *marks], env=env)

    def agent(folder):
        with (folder / "agent.log").open("w") as log:
            command = [sys.executable, "-I", "-S", "-c", SLEEP, "ray::RuntimeEnvAgent"]
            return subprocess.Popen(command, env={}, stdout=log)

    left = begin("of-this-cluster", "ray::DashboardAgent")
    titled, titled_other = agent(tmp_path / "cluster"), agent(tmp_path)
    users, others = begin("of-this-cluster"), begin("of-another", "ray::DashboardAgent")
    program = subprocess.Popen(
        [sys.executable, "-I", "-S", ray_reaper.__file__, str(tmp_path / "cluster")],
        stdin=subprocess.PIPE,
        env=environment,
    )
    try:
        assert program.stdin is not None
        time.sleep(0.5)
        assert left.poll() is None
        program.stdin.close()

        assert left.wait(timeout=30) < 0
        assert titled.wait(timeout=30) < 0
        assert program.wait(timeout=30) == 0
        assert users.poll() is None
        assert others.poll() is None
        assert titled_other.poll() is None
        assert not (tmp_path / "cluster").exists()
    finally:
        for process in (left, titled, titled_other, users, others, program):
            process.kill()
            process.wait()
