"""Hosts, and the users at their ports."""

import os
import socket

import pytest

from flbench.core import hosts


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
