"""Whether a host is this machine, and which user listens at one of its ports."""

import socket
from pathlib import Path
from typing import Final

TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENING: Final = "0A"  # state of a socket in these tables


def is_local(host: str) -> bool:
    """Return whether a name or an address is one of this machine.

    >>> is_local("localhost"), is_local("203.0.113.1")
    (True, False)
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(_can_bind(family, place[0]) for family, _, _, _, place in found)


def _can_bind(family: int, host: str | int) -> bool:
    """Return whether a socket can be bound to an address, as it can to those of this machine."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def users_at(port: int) -> set[int]:
    """Return the ids of the users whose processes listen at a port of this machine.

    Args:
        port: A TCP port.

    Returns:
        The ids; empty if no process listens, or if the operating system does not say it.
    """
    users = set()
    for table in TABLES:
        try:
            lines = Path(table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                users.add(int(fields[7]))
    return users
