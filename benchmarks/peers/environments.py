"""One virtual environment per peer, made with pip.

A peer is compared with flbench on the same PyTorch: the environments do not install PyTorch again,
but find that of the Python that runs the harness. Its files, and those of the packages that it
needs, are links in a folder of their own, `shared-torch`, which a `.pth` file adds to the search
path of each environment. Everything else is installed into the environment itself.
"""

import hashlib
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REQUIREMENTS = Path(__file__).with_name("requirements")
SHARED = ("torch", "torchvision", "numpy")


class InstallError(Exception):
    """An environment could not be made; the message is the reason."""


def python_of(peer: str, folder: Path) -> Path:
    """Return the Python of a peer's environment, and make the environment if it is missing.

    Args:
        peer: Name of the peer; one without a requirements file runs in this Python.
        folder: Folder of all environments.

    Raises:
        InstallError: pip failed.
    """
    file = REQUIREMENTS / f"{peer}.txt"
    if not file.exists():
        return Path(sys.executable)
    place = folder / peer
    python = place / "bin" / "python"
    shared = metadata.version("torch")
    wanted = hashlib.sha256(file.read_bytes() + shared.encode()).hexdigest()
    done = place / "installed"
    if done.exists() and done.read_text() == wanted:
        return python
    venv.create(place, with_pip=True, clear=True)
    packages = next(place.glob("lib/python*/site-packages"))
    (packages / "shared-torch.pth").write_text(f"{_link_torch(folder / 'shared-torch')}\n")
    command = [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(file)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        lines = [line for line in process.stderr.splitlines() if line.startswith("ERROR")]
        raise InstallError("pip: " + (lines or process.stderr.splitlines() or ["no message"])[-1])
    done.write_text(wanted)
    return python


def versions_of(python: Path, packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of packages, and of Python itself, in an environment.

    Args:
        python: Python of the environment.
        packages: Names of distributions; those that are not installed are left out.
    """
    code = (
        "import sys, platform; from importlib import metadata\n"
        "print('python', platform.python_version())\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(name, metadata.version(name))\n"
        "    except metadata.PackageNotFoundError: pass\n"
    )
    command = [str(python), "-c", code, *packages]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(line.split(maxsplit=1) for line in output.splitlines())


def _link_torch(folder: Path) -> Path:
    """Link PyTorch and the packages that it needs into a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(_closure(SHARED)):
        distribution = metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}
        for top in sorted(tops - {"__pycache__"}):
            target, link = Path(str(distribution.locate_file(top))), folder / top
            if target.exists() and not link.is_symlink():
                link.symlink_to(target)
    return folder.resolve()


def _closure(names: tuple[str, ...]) -> set[str]:
    """Return the installed distributions that the named ones need, themselves included."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        try:
            needs = metadata.distribution(name).requires or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        requirements = map(Requirement, needs)
        waiting += [
            one.name
            for one in requirements
            if one.marker is None or one.marker.evaluate({"extra": ""})
        ]
    return found
