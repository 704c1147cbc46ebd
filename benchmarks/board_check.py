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
import tempfile
from pathlib import Path
from time import perf_counter

import flbench as fl


def main() -> int:
    """Train the runs that were drawn, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with the data sets")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/board"))
    parser.add_argument("--runs", type=int, default=10, help="how many runs are drawn")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawing")
    asked = parser.parse_args()
    archives = sorted(asked.folder.resolve().glob("*.tar.xz"))
    reports = [fl.report(archive) for archive in archives]  # keeps the unpacked archives
    runs = [row for found in reports for row in found.runs.itertuples(index=False)]
    os.chdir(asked.data)  # configurations name files of this folder

    differ = 0
    for row in random.Random(asked.seed).sample(runs, min(asked.runs, len(runs))):
        published = json.loads((Path(row.path) / "summary.json").read_text())
        begin = perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            again = fl.run(
                config=Path(row.path) / "config.yaml", output={"dir": folder}, progress=False
            )
            is_equal = again.summary["weights_digest"] == published["weights_digest"]
            is_same_score = again.summary["best"]["test"] == published["best"]["test"]
        differ += not (is_equal and is_same_score)
        said = "same digest" if is_equal else "ANOTHER DIGEST"
        said += ", same test metrics" if is_same_score else ", OTHER TEST METRICS"
        seconds = perf_counter() - begin
        print(f"{row.place}  {row.method}  repetition {row.repetition}: {said} ({seconds:.0f} s)")
    return min(differ, 1)


if __name__ == "__main__":
    sys.exit(main())
