"""One virtual environment per peer, made with pip.

A peer is compared with flbench on the same PyTorch: an environment has what its requirements need,
and finds everything else, such as PyTorch, in the Python that runs the harness.
"""

import hashlib
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements")
VERSIONS = """
import platform, sys
from importlib import metadata
print("python", platform.python_version())
for name in sys.argv[1:]:
    try: print(name, metadata.version(name))
    except metadata.PackageNotFoundError: pass
"""


class InstallError(Exception):
    """An environment could not be made; the message is the reason."""


def python_of(peer: str, folder: Path) -> Path:
    """Return the Python of a peer's environment, and make the environment if it is missing.

    Raises:
        InstallError: pip failed.
    """
    file = REQUIREMENTS / f"{peer}.txt"
    if not file.exists():
        return Path(sys.executable)
    python, done = folder / peer / "bin" / "python", folder / peer / "installed"
    shared = metadata.version("torch")
    wanted = hashlib.sha256(file.read_bytes() + shared.encode()).hexdigest()
    if done.exists() and done.read_text() == wanted:
        return python
    venv.create(folder / peer, with_pip=True, clear=True)
    packages = next((folder / peer).glob("lib/python*/site-packages"))
    (packages / "harness.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pinned = folder / peer / "constraints"  # pip must not install another PyTorch
    pinned.write_text(f"torch=={shared}\ntorchvision=={metadata.version('torchvision')}\n")
    command = [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(file)]
    command += ["--constraint", str(pinned)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        lines = [line for line in process.stderr.splitlines() if line.startswith("ERROR")]
        raise InstallError("pip: " + (lines or process.stderr.splitlines() or ["no message"])[-1])
    done.write_text(wanted)
    return python


def versions_of(python: Path, packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of Python and of those packages that an environment has."""
    command = [str(python), "-c", VERSIONS, *packages]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(line.split(maxsplit=1) for line in output.splitlines())
