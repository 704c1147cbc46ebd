"""Trains runs of the board again, drawn at random, and compares the digests of their weights.

usage: python benchmarks/board_check.py DATA_DIR [FOLDER] [--runs 10] [--seed 0]
(FOLDER: default docs/board)

The configurations come from the archives FOLDER/*.tar.xz. The exit code is 1 if a digest differs.
"""

import argparse
import json
import os
import random
import sys
import tarfile
import tempfile
from pathlib import Path
from time import perf_counter

import flbench as fl


def names(folder: Path) -> list[tuple[Path, str]]:
    """Return the archives of a folder with the runs in them."""
    found = []
    for archive in sorted(folder.resolve().glob("*.tar.xz")):
        with tarfile.open(archive) as files:
            paths = sorted(files.getnames())
        found += [
            (archive, path.removesuffix("/summary.json"))
            for path in paths
            if path.endswith("/summary.json")
        ]
    return found


def main() -> int:
    """Train the runs that were drawn, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with the data sets")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/board"))
    parser.add_argument("--runs", type=int, default=10, help="how many runs are drawn")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawing")
    asked = parser.parse_args()
    runs = names(asked.folder)
    drawn = random.Random(asked.seed).sample(runs, min(asked.runs, len(runs)))
    os.chdir(asked.data)  # configurations name files of this folder

    differ = 0
    for archive, run in drawn:
        begin = perf_counter()
        with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as files:
            published = json.load(files.extractfile(f"{run}/summary.json"))
            config = Path(folder) / "config.yaml"
            config.write_bytes(files.extractfile(f"{run}/config.yaml").read())
            again = fl.run(config=config, output={"dir": folder}, progress=False).summary
        is_equal = again["weights_digest"] == published["weights_digest"]
        is_same_score = again["best"]["test"] == published["best"]["test"]
        differ += not (is_equal and is_same_score)
        said = "same digest" if is_equal else "ANOTHER DIGEST"
        said += ", same test metrics" if is_same_score else ", OTHER TEST METRICS"
        print(f"{archive.name} {run}: {said} ({perf_counter() - begin:.0f} s)", flush=True)
    return min(differ, 1)


if __name__ == "__main__":
    sys.exit(main())
