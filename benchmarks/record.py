"""Runs a command and appends what it took to a file of JSON lines.

    python benchmarks/record.py FILE NAME SECONDS COMMAND ...

A line has the name, the command, its exit code (124: stopped after SECONDS), its seconds, the peak
of the GPUs' memory in MiB over what was in use before (None without nvidia-smi), and its output:
the JSON document that it printed, otherwise the last lines. A line is written as soon as its
command ends, so that a benchmark that is cut short keeps what it has measured.
"""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

PAUSE = 0.2
"""Seconds between two looks at the memory of the GPUs."""


def main(arguments: list[str]) -> int:
    """Run the command, append the line, and return the exit code of the command."""
    file, name, seconds, *command = arguments
    before = gpu_memory()
    peak = [before]
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(peak, ended), daemon=True)
    if before is not None:
        watch.start()
    start = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=float(seconds))
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        code, out, err = 124, _text(error.stdout), _text(error.stderr)
    taken = time.monotonic() - start
    ended.set()
    line = {
        "name": name,
        "command": command,
        "exit_code": code,
        "seconds": round(taken, 2),
        "gpu_memory": None if before is None else max(m for m in peak if m is not None) - before,
        "output": _output(out),
    }
    if code:
        line["errors"] = err.splitlines()[-20:]
    with Path(file).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line) + "\n")
    sys.stdout.write(f"{name}: exit code {code}, {taken:.1f} s\n")
    sys.stdout.flush()
    return code


def gpu_memory() -> int | None:
    """Return the memory in use on all GPUs in MiB; None if nvidia-smi cannot tell."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10)
        return sum(int(line) for line in said.stdout.split()) if said.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def _watch(peak: list[int | None], ended: threading.Event) -> None:
    while not ended.wait(PAUSE):
        peak.append(gpu_memory())


def _output(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.splitlines()[-20:]


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
