"""Hosts, the users at their ports, and addresses of Ray clusters that a folder names."""

import os
import socket
from pathlib import Path

import pytest

from flbench.core import hosts
from flbench.core.errors import ConfigError


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_users_at_a_port_are_those_who_listen(family):
    with socket.socket(family, socket.SOCK_STREAM) as server:
        try:
            server.bind(("localhost", 0))
        except OSError:
            pytest.skip("this machine has no such interface")
        port = server.getsockname()[1]
        assert hosts.users_at(port) == set()

        server.listen()

        assert hosts.users_at(port) == {os.getuid()}


@pytest.mark.parametrize(
    "address", ["192.0.2.1:6379", "ray://192.0.2.1:10001", "[2001:db8::1]:6379", "192.0.2.1", ""]
)
def test_foreign_cluster_of_a_folder_is_refused(address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.2:6379")

    with pytest.raises(ConfigError, match=r"studies/a.*give --address again"):
        hosts.check_cluster_of_folder(address, "--address", Path("studies/a"))


@pytest.mark.parametrize("address", [None, "auto", "127.0.0.1:1", "[::1]:1", "192.0.2.2:6379"])
def test_own_cluster_of_a_folder_is_joined(address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.2:6379")

    hosts.check_cluster_of_folder(address, "--address", Path("studies/a"))
