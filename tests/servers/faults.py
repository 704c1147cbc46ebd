"""The table of faults.

Each course of events is a generator: it begins the work, disturbs it, and yields it. What follows
`yield` happens after the end of the work, before `flbench sync`.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.servers.proxy import Fate, Plan
from tests.servers.work import Work

Begin = Callable[[], Work]
Course = Callable[[Any, Begin], Iterator[Work]]
DENIED: Final = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: What happens.
        servers: Name of the installation; see `Installations.begin`.
        work: Name of the work; see `arguments`.
        course: The course of events.
    """

    name: str
    servers: str
    work: str
    course: Course


def server_is_away_until_later(servers: Any, begin: Begin) -> Iterator[Work]:
    """MLflow's server is stopped during the work, and starts when the work has ended."""
    work = begin()
    work.wait_for_rounds(1)
    servers.server.stop()
    try:
        yield work
    finally:
        servers.server.start()


def server_is_killed(servers: Any, begin: Begin) -> Iterator[Work]:
    """MLflow's server is killed during the work, and starts again."""
    work = begin()
    work.wait_for_rounds(1)
    servers.server.kill()
    servers.server.start()
    yield work


def planned(proxy: str, plan: Plan) -> Course:
    """A proxy follows a plan until the work has ended."""

    def course(servers: Any, begin: Begin) -> Iterator[Work]:
        with getattr(servers, proxy).planned(plan):
            yield begin()

    return course


def files_are_away(servers: Any, begin: Begin) -> Iterator[Work]:
    """The server of S3 refuses connections until the work has ended."""
    with servers.files.away():
        yield begin()


def every(number: int, fate: Fate) -> Plan:
    """Give every request of a number the same fate."""
    return lambda request: fate if request.number % number == 0 else Fate()


def cut_for_a_minute(servers: Any, begin: Begin) -> Iterator[Work]:
    """The link of a node is down for a minute."""
    work = begin()
    work.wait_for_rounds(work.at_once)
    servers.nodes.cut()
    time.sleep(60)
    servers.nodes.connect()
    yield work


def cut_for_good(servers: Any, begin: Begin) -> Iterator[Work]:
    """The link of a node is down until the end."""
    work = begin()
    work.wait_for_rounds(work.at_once)
    servers.nodes.cut()
    yield work


def node_is_killed(servers: Any, begin: Begin) -> Iterator[Work]:
    """All processes of a node are killed."""
    work = begin()
    work.wait_for_rounds(work.at_once)
    servers.nodes.kill()
    yield work


S3_REFUSES: Final = planned("files", every(1, Fate(status=403, page=DENIED)))
ON_CLUSTERS: Final = ("long study", "long run", "long comparison")
CLUSTER: Final = {
    "a node is cut off for a minute": cut_for_a_minute,
    "a node is cut off for good": cut_for_good,
    "a node is killed": node_is_killed,
}
FAULTS: Final = (
    Fault("MLflow is away until later", "folder", "study", server_is_away_until_later),
    Fault("MLflow is killed and starts again", "folder", "comparison", server_is_killed),
    Fault(
        "503 to every third request", "folder", "comparison", planned("proxy", every(3, Fate(503)))
    ),
    Fault(
        "413 for a table",
        "folder",
        "comparison",
        planned("proxy", lambda one: Fate(413 if one.path.endswith("/per_class.csv") else None)),
    ),
    Fault("connections are cut", "folder", "run", planned("proxy", every(5, Fate(cut="before")))),
    Fault(
        "answers are lost", "folder", "comparison", planned("proxy", every(7, Fate(cut="after")))
    ),
    Fault("requests take 1 s", "folder", "run", planned("proxy", every(1, Fate(seconds=1)))),
    Fault("S3 is away", "s3", "comparison", files_are_away),
    Fault("S3 refuses", "s3", "comparison", S3_REFUSES),
    Fault("S3 takes 3 s", "s3", "run", planned("files", every(1, Fate(seconds=3)))),
    *(
        Fault(name, "cluster", work, course)
        for work in ON_CLUSTERS
        for name, course in CLUSTER.items()
    ),
)
