"""The table of faults.

Each course of events is a generator: it begins the work, disturbs it, and yields it. What follows
`yield` happens after the end of the work, before `flbench sync`.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.servers.proxy import Fate, Plan, Request
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

    @property
    def identity(self) -> tuple[str, ...]:
        """What happens, to which servers, and to which work."""
        return self.name, self.servers, self.work


def database_is_killed(servers: Any, begin: Begin) -> Iterator[Work]:
    """PostgreSQL is killed during the work, and starts again five seconds later."""
    work = begin()
    work.wait_for_rounds(1)
    servers.database.kill()
    time.sleep(5)
    servers.database.start()
    yield work


def database_is_away_until_later(servers: Any, begin: Begin) -> Iterator[Work]:
    """PostgreSQL is stopped during the work, and starts when the work has ended."""
    work = begin()
    work.wait_for_rounds(1)
    servers.database.stop()
    try:
        yield work
    finally:
        servers.database.start()


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


def for_some_seconds(proxy: str, fate: Fate, seconds: float) -> Course:
    """A proxy fails for some seconds during the work."""

    def course(servers: Any, begin: Begin) -> Iterator[Work]:
        work = begin()
        work.wait_for_rounds(1)
        with getattr(servers, proxy).planned(lambda request: fate):
            time.sleep(seconds)
        yield work

    return course


def files_are_away(servers: Any, begin: Begin) -> Iterator[Work]:
    """The server of S3 refuses connections until the work has ended."""
    with servers.files.away():
        yield begin()


def every(number: int, fate: Fate) -> Plan:
    """Give every request of a number the same fate."""
    return lambda request: fate if request.number % number == 0 else Fate()


def all_with(fate: Fate, *, method: str = "", end: str = "") -> Plan:
    """Give all requests of a method, to paths with an end, the same fate."""

    def plan(request: Request) -> Fate:
        is_meant = request.method == (method or request.method) and request.path.endswith(end)
        return fate if is_meant else Fate()

    return plan


def cut_for_a_minute(servers: Any, begin: Begin) -> Iterator[Work]:
    """The link of a node is down for a minute."""
    work = begin()
    work.wait_for_rounds(_at_once(work))
    servers.nodes.cut()
    time.sleep(60)
    servers.nodes.connect()
    yield work


def cut_for_good(servers: Any, begin: Begin) -> Iterator[Work]:
    """The link of a node is down until the end."""
    work = begin()
    work.wait_for_rounds(_at_once(work))
    servers.nodes.cut()
    yield work


def node_is_killed(servers: Any, begin: Begin) -> Iterator[Work]:
    """All processes of a node are killed."""
    work = begin()
    work.wait_for_rounds(_at_once(work))
    servers.nodes.kill()
    yield work


def _at_once(work: Work) -> int:
    """Return how many trainings of a work run at the same time on the two nodes."""
    return 1 if work.is_on_both_nodes else 2


S3_REFUSES: Final = Fate(status=403, page=DENIED)
ON_CLUSTERS: Final = ("long study", "long study, 2 workers", "long run", "long comparison")
CLUSTER: Final = {
    "a node is cut off for a minute": cut_for_a_minute,
    "a node is cut off for good": cut_for_good,
    "a node is killed": node_is_killed,
}
FAULTS: Final = (
    Fault("PostgreSQL is killed and starts again", "folder", "study", database_is_killed),
    Fault("PostgreSQL is away until later", "folder", "comparison", database_is_away_until_later),
    Fault("MLflow is killed and starts again", "folder", "comparison", server_is_killed),
    Fault(
        "503 to every third request", "folder", "comparison", planned("proxy", every(3, Fate(503)))
    ),
    Fault("502 for 8 s", "folder", "run", for_some_seconds("proxy", Fate(502), 8)),
    Fault(
        "413 for a table",
        "folder",
        "comparison",
        planned("proxy", all_with(Fate(413), method="PUT", end="/per_class.csv")),
    ),
    Fault("connections are cut", "folder", "run", planned("proxy", every(5, Fate(cut="before")))),
    Fault(
        "answers are lost", "folder", "comparison", planned("proxy", every(7, Fate(cut="after")))
    ),
    Fault("requests take 1 s", "folder", "run", planned("proxy", every(1, Fate(seconds=1)))),
    *(
        Fault(f"S3 {name}", servers, work, course)
        for servers in ("served s3", "direct s3")
        for name, work, course in (
            ("is away", "comparison", files_are_away),
            ("refuses", "comparison", planned("files", all_with(S3_REFUSES))),
            ("takes 3 s", "run", planned("files", every(1, Fate(seconds=3)))),
        )
    ),
    Fault("S3 refuses", "direct s3", "study", planned("files", all_with(S3_REFUSES))),
    *(
        Fault(name, "cluster", work, course)
        for work in ON_CLUSTERS
        for name, course in CLUSTER.items()
    ),
)
