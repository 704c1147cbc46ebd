"""Installs what the tests of servers need, and runs them in namespaces of their own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.servers import VARIABLE

ROOT: Final = Path(__file__).resolve().parents[2]
EXTRAS: Final = ROOT / ".servers"
"""Environment with what the product itself does not need."""
REQUIREMENTS: Final = ("boto3>=1.40", "moto[s3]>=5.1")
INSIDE: Final = """
mount -t tmpfs -o mode=755 none /run &&
mount -t tmpfs -o mode=1777 none /dev/shm &&
ip link set lo up || exit 2
"$@"
exit $?
"""
"""What the first process of the namespaces does. It waits for pytest, and for orphans."""


def main(arguments: list[str]) -> None:
    """Install what is missing, and become pytest in namespaces of its own."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("unshare")):
        sys.exit("error: make test-servers needs root, iproute2 and util-linux, for namespaces.")
    python = _install_extras()
    inside = ["unshare", "--mount", "--net", "--ipc", "--pid", "--fork", "--kill-child"]
    pytest = [python, "-m", "pytest", "-n0", "-m", "servers", "tests/servers", *arguments]
    os.chdir(ROOT)
    os.environ[VARIABLE] = "1"
    os.execvp(inside[0], [*inside, "--mount-proc", "sh", "-c", INSIDE, "sh", *pytest])


def _install_extras() -> str:
    """Return the Python of the environment with the extras, which is made if it is missing."""
    python, done = EXTRAS / "bin" / "python", EXTRAS / "installed"
    wanted = "\n".join([*REQUIREMENTS, sys.prefix])
    if done.is_file() and done.read_text() == wanted:
        return str(python)
    shutil.rmtree(EXTRAS, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(EXTRAS)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = EXTRAS / "lib" / version / "site-packages"
    tests = Path(sys.prefix) / "lib" / version / "site-packages"
    (own / "tests.pth").write_text(f"{tests}\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS]
    subprocess.run(pip, check=True)
    done.write_text(wanted)
    return str(python)


if __name__ == "__main__":
    main(sys.argv[1:])
