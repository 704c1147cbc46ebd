"""Ray on a machine with other users: who can call its servers, and what its workers import."""

import os
import pickle
import py_compile
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import cloudpickle
import pytest

from flbench.core import parts
from flbench.core.errors import ConfigError, RunError
from flbench.workers import ray_driver
from flbench.workers.nesting import VARIABLE
from flbench.workers.portable import portable
from flbench.workers.ray_driver import RayDriver, RayPool

ray = pytest.importorskip("ray")
ray_session = pytest.importorskip("flbench.workers.ray_session")

ATTACK = "import pathlib; pathlib.Path({place!r}).touch()\n"
OTHER = 54321  # a user who is not this one


def listening(pids: list[int]) -> set[str]:
    """Return the local addresses, as `ADDRESS:PORT` in hexadecimal, at which processes listen."""
    tables = ("/proc/net/tcp", "/proc/net/tcp6")
    found = [fields for table in tables for fields in sockets(table, pids)]
    return {fields[1] for fields in found if fields[3] == "0A"}


def sockets(table: str, pids: list[int], *, inode: int = 9) -> list[list[str]]:
    """Return the lines of a table of the kernel that are about sockets of processes."""
    links = {link for pid in pids for link in opened(pid).values()}
    lines = [line.split() for line in Path(table).read_text().splitlines()[1:]]
    return [fields for fields in lines if f"socket:[{fields[inode]}]" in links]


def opened(pid: int) -> dict[int, str]:
    """Return what a process has open, by the number of the descriptor."""
    found = {}
    with suppress(OSError):  # it has ended
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found[int(one.name)] = os.readlink(one)
    return found


def can_write(pid: int, descriptor: int) -> bool:
    """Return whether a process has opened a file for writing; False if it has closed it since."""
    try:
        lines = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines()
    except OSError:
        return False
    [flags] = [int(line.split()[1], 8) for line in lines if line.startswith("flags:")]
    return bool(flags & (os.O_WRONLY | os.O_RDWR))


class Seen:
    """What a worker sees, in a class of a module that its process has to find."""

    def __init__(self, sent):
        self.sent = sent

    def look(self):
        assert "torch" in sys.modules  # imported before the worker's first task, at `/`
        import colorsys
        import wave

        found = {module.__name__: module.__file__ for module in (colorsys, wave)}
        return found, sys.path, os.environ["RAY_AUTH_TOKEN"], self.sent.answer()


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A cluster of flbench, started in a folder of somebody else.

    The user has set variables for a cluster of several machines.
    """
    folder, home = tmp_path_factory.mktemp("downloaded"), tmp_path_factory.mktemp("home")
    for name in ("colorsys", "wave", "torch", "numpy"):
        (folder / f"{name}.py").write_text(ATTACK.format(place=str(folder.parent / "executed")))
    (folder / "own_module_of_test.py").write_text("class Own:\n    def answer(self): return 42\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HOME", str(home))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")
        patch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
        with RayDriver("local", cpus=1) as found:
            yield found
    assert os.environ.get("RAY_AUTH_TOKEN") is None


@pytest.fixture(scope="module")
def seen(driver, tmp_path_factory):
    """What a worker of the cluster sees, and whether files of the folder were executed."""
    # The class travels by value: the worker has no path to the modules of the tests.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    own = parts.find("own_module_of_test:Own")()
    needs = {"CPU": 1.0, "GPU": 0.0}
    pool = RayPool(driver, print, Seen, [own], 1, needs, "a worker", 100.0)
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    pool.submit("a", "look")
    while not (ended := pool.ended(1.0)):
        pass
    yield *ended[0].value, (tmp_path_factory.getbasetemp() / "executed").exists()
    sys.modules.pop("own_module_of_test", None)


def of_ray(driver: RayDriver) -> list[int]:
    """Return the processes of a driver's session, without the driver."""
    leader, found = driver.call(os.getpid), []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(entry.name)) == leader != int(entry.name):
                found.append(int(entry.name))
    return found


def session_folder() -> str:
    return str(ray._private.worker._global_node.get_session_dir_path())


@pytest.mark.slow
@pytest.mark.processes
class TestLocalCluster:
    def test_workers_import_nothing_of_the_current_folder_but_what_the_user_names(self, seen):
        found, path, _, answer, is_executed = seen

        assert not is_executed
        assert all(Path(file).parent == Path(os.__file__).parent for file in found.values())
        assert answer == 42
        assert path.index(os.getcwd()) > path.index(str(Path(os.__file__).parent))

    def test_token_is_random_and_known_to_this_user_alone(self, driver, seen):
        token, home = seen[2], Path(driver.call(os.getenv, "HOME"))
        lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in of_ray(driver)]

        assert len(token) == 64
        assert token == driver.call(os.getenv, "RAY_AUTH_TOKEN")
        assert not any(token in line for line in lines)
        assert not (home / ".ray").exists()

    @pytest.fixture
    def private(self, driver):
        """The folder of the cluster that only this user can open."""
        return Path(driver.call(session_folder)).parents[1]

    def test_files_of_the_session_are_private(self, private):
        assert private.stat().st_mode & 0o777 == 0o700
        assert private.stat().st_uid == os.getuid()
        assert private.parent in (Path("/tmp"), Path(ray_driver.place()))

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
    def test_another_user_does_not_reach_a_socket(self, driver):
        sockets = Path(driver.call(session_folder)) / "sockets"
        command = ["setpriv", f"--reuid={OTHER}", "--clear-groups", "ls", str(sockets)]

        assert subprocess.run(command, capture_output=True, check=False).returncode != 0

    def test_servers_listen_on_the_loopback_interface(self, driver):
        found = listening([driver.call(os.getpid), *of_ray(driver)])

        assert found
        loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
        assert {place.partition(":")[0] for place in found} <= loopback

    def test_no_other_socket_is_open_to_other_users(self, driver, private):
        """A socket of Unix without a file, whose name begins with @, has no permissions."""
        pids = [driver.call(os.getpid), *of_ray(driver)]
        kinds = {"udp": 9, "udp6": 9, "raw": 9, "raw6": 9, "packet": 8}  # columns of the inode
        for kind in (one for one in kinds if Path(f"/proc/net/{one}").exists()):
            found = sockets(f"/proc/net/{kind}", pids, inode=kinds[kind])
            assert {fields[1].partition(":")[0] for fields in found} <= {"0100007F"}
        of_unix = sockets("/proc/net/unix", pids, inode=6)
        listening_at = {fields[7] for fields in of_unix if fields[3] == "00010000"}
        assert listening_at
        assert {Path(place).is_relative_to(private) for place in listening_at} == {True}

    def test_no_file_outside_of_the_private_folder_is_written(self, driver, private):
        """Memory that is shared between processes has no name, or permissions of this user."""
        pids = of_ray(driver)
        written = {
            (link, pid, number)
            for pid in pids
            for number, link in opened(pid).items()
            if link.startswith("/")
            and not link.startswith(("/dev/null", "/dev/pts", "/dev/ptmx", "/memfd:"))
            and can_write(pid, number)
        }
        elsewhere = {one for one in written if not Path(one[0]).is_relative_to(private)}
        assert len(written) > len(elsewhere)
        # Its children inherit logs of the driver.
        leader = driver.call(os.getpid)
        elsewhere = {one for one in elsewhere if f"_{leader}.log" not in one[0]}

        for link, pid, number in elsewhere:
            assert link.startswith("/dev/shm/")
            assert link.endswith(" (deleted)")
            assert os.stat(f"/proc/{pid}/fd/{number}").st_mode & 0o077 == 0, link

    def test_no_service_answers_without_the_token(self, driver):
        """Each server has one or the other of these services."""
        grpc = pytest.importorskip("grpc")
        calls = (
            *("NodeManagerService/GetNodeStats", "NodeManagerService/RequestWorkerLease"),
            *("CoreWorkerService/PushTask", "CoreWorkerService/KillActor", "JobInfoGcsService/x"),
            *("InternalKVGcsService/InternalKVGet", "JobInfoGcsService/GetAllJobInfo"),
            *("ObjectManagerService/Push", "ObjectManagerService/Pull"),
        )
        own = [driver.call(os.getpid), *of_ray(driver)]
        ports = {int(place.partition(":")[2], 16) for place in listening(own)}
        answers = set()
        for port in ports:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                for call in calls:
                    with pytest.raises(grpc.RpcError) as raised:
                        channel.unary_unary(f"/ray.rpc.{call}")(b"", timeout=5)
                    answers.add(raised.value.code().name)

        assert len(ports) >= 5
        assert answers <= {"UNAUTHENTICATED", "UNIMPLEMENTED", "UNAVAILABLE"}
        assert "UNAUTHENTICATED" in answers


def test_ray_that_does_not_start_is_one_message(monkeypatch, tmp_path):
    def init(**_):
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", init)

    with pytest.raises(RunError, match="The current node timed out"):
        ray_session.connect(None, folder=str(tmp_path))


class TestAddress:
    @pytest.fixture
    def joined(self, monkeypatch, tmp_path):
        """The addresses that Ray is asked to join, which is not called."""
        calls = []
        monkeypatch.setattr(ray, "init", lambda **options: calls.append(options["address"]))
        monkeypatch.setattr(ray_session, "_servers", list)
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        (tmp_path / "ray").mkdir()
        return calls

    @pytest.fixture
    def address(self):
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            yield f"127.0.0.1:{server.getsockname()[1]}"

    def test_other_forms_are_refused_by_name(self, joined):
        """Ray reads some of these numbers, and imports the module that a scheme names."""
        for form in (
            *("127.0.0.1: 1", "127.0.0.1:1 ", "127.0.0.1:+1", "127.0.0.1:0_1", "127.0.0.1"),
            *("http://127.0.0.1:1", "module_of_ray_address://127.0.0.1:1", "127.0.0.1:", ""),
            "127.0.0.1:1",  # nobody listens there
        ):
            with pytest.raises(ConfigError, match="--address"):
                ray_session.connect(form, key="--address")

        assert joined == []

    def test_auto_does_not_join_the_cluster_of_another_user(self, joined, tmp_path, monkeypatch):
        (tmp_path / "ray" / "ray_current_cluster").write_text("192.0.2.1:6379")
        monkeypatch.setattr(os, "getuid", lambda: OTHER)

        with pytest.raises(ConfigError, match=r"`engine\.address`"):
            ray_session.connect("auto")

        assert joined == []

    @pytest.mark.parametrize("place", ["file", "variable"])
    def test_auto_joins_the_one_of_this_user(self, place, address, joined, tmp_path, monkeypatch):
        if place == "file":
            (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        else:
            monkeypatch.setenv("RAY_ADDRESS", address)
        ray_session.connect("auto")

        assert joined == [address]


def in_a_worker(code: str, content: bytes) -> "subprocess.CompletedProcess[bytes]":
    """Run code in a process that counts as a worker, with a pickled object as its input."""
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd="/",
        input=content,
        capture_output=True,
        check=True,
        env={**os.environ, VARIABLE: "1"},
    )


@pytest.mark.slow
def test_portable_object_finds_its_module_in_another_process(tmp_path, monkeypatch):
    """So does a module that it imports in a function, and bytecode does not replace a source."""
    (tmp_path / "module_beside.py").write_text(
        "class Own:\n    def answer(self):\n        from module_later import x; return x\n"
    )
    later = tmp_path / "module_later.py"
    later.write_text("x = 7\n")
    py_compile.compile(str(later), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    later.write_text("x = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    own = parts.find("module_beside:Own")()
    content = pickle.dumps(portable(own, pickle.dumps))
    sys.modules.pop("module_beside")
    code = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).answer())"

    done = in_a_worker(code, content)

    assert done.stdout == b"42\n"


def test_the_process_of_a_run_stays_in_its_folder(tmp_path, monkeypatch):
    content = pickle.dumps(portable(1, pickle.dumps))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mine"])

    assert pickle.loads(content) == 1
    assert (Path.cwd(), sys.argv) == (tmp_path, ["mine"])


@pytest.mark.slow
@pytest.mark.parametrize("position", ["first", "last"])
def test_another_process_searches_folders_in_the_order_of_this_one(tmp_path, monkeypatch, position):
    """Two folders have a file of the same name; the current folder is searched last of all."""
    for folder in ("given", "current"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "twice.py").write_text(f"class Own:\n    place = {folder!r}\n")
    (tmp_path / "current" / "planted.py").touch()
    monkeypatch.chdir(tmp_path / "current")
    kept, given = list(sys.path), str(tmp_path / "given")
    monkeypatch.setattr(sys, "path", [given, *kept] if position == "first" else [*kept, given])
    own = parts.find("twice:Own")()
    assert own.place == "given"
    content = pickle.dumps(portable(own, pickle.dumps))
    sys.modules.pop("twice")
    code = (
        "import pickle, sys; own = pickle.loads(sys.stdin.buffer.read())\n"
        "import importlib.util, os\n"
        "assert importlib.util.find_spec('planted') is None\n"
        "early = sys.path[: sys.path.index(os.path.dirname(os.__file__))]\n"
        f"print(own.place, os.getcwd(), {given!r} in early)"
    )

    done = in_a_worker(code, content)

    is_first = str(position == "first")
    assert done.stdout.decode().split() == ["given", str(tmp_path / "current"), is_first]
