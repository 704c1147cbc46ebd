"""PyTorch is imported while the current folder, which may be a stranger's, is left."""

import subprocess
import sys

FIRST = """
import os, sys


class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.write(1, os.getcwd().encode())
            os._exit(0)


from flbench.cli.app import main

commands = {commands!r}
for command in commands:
    if os.fork() == 0:
        sys.meta_path.insert(0, Watch())
        main(command)
        os._exit(0)
    os.wait()
    os.write(1, f" {{command[0]}}\\n".encode())
"""
COMMANDS = (
    ["run", "engine.workers=1"],
    ["run", "--dry-run"],
    ["run", "--resume", "."],
    ["compare", "fedavg", "ft"],
    ["ablate", "hfcd", "--keys", "algorithm.tau"],
    ["tune", "fedavg"],
    ["algos"],
    ["data", "digits"],
    ["reproduce"],
    ["new-method", "mine"],
    ["export", ".", "--client", "0", "--out", "x.pt2"],
    ["predict", ".", "x.npz", "--client", "0"],
)


def test_every_command_imports_pytorch_at_the_root(tmp_path):
    done = subprocess.run(
        [sys.executable, "-P", "-c", FIRST.format(commands=COMMANDS)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines() == [f"/ {command[0]}" for command in COMMANDS]
