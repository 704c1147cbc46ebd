"""Trains runs of the board again, drawn at random, and compares the digests of their weights.

usage: python benchmarks/board_check.py DATA_DIR [FOLDER] [--runs 10] [--seed 0]
(FOLDER: default docs/board)

The configurations come from the archives FOLDER/*.tar.xz. The exit code is 1 if a digest differs,
a run cannot be trained, or an archive cannot be read. Code that a configuration names runs only
with --run-code.
"""

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import flbench as fl
from flbench.comparison.archive import Unpacked
from flbench.core.documents import as_data_error
from flbench.core.text import printable
from flbench.results import folders, reading


def runs_of(archive: Unpacked) -> list[Path]:
    """Return the folders of the finished runs in an archive."""
    return [path for path in folders.below(archive.path) if reading.is_finished(path)]


def main() -> int:
    """Train the runs that were drawn, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with the data sets")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/board"))
    parser.add_argument("--runs", type=int, default=10, help="how many runs are drawn")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawing")
    parser.add_argument(
        "--run-code",
        action="store_true",
        help="run code that configurations name: in a container, as docs/security.md says",
    )
    asked = parser.parse_args()
    failed, runs = 0, []
    for file in sorted(asked.folder.resolve().glob("*.tar.xz")):
        try:
            archive = Unpacked(file)
        except fl.UserError as error:
            failed += 1
            print(f"{printable(file.name)}: NOT TRAINED: {error}", flush=True)
        else:
            runs += [(file, archive, run) for run in runs_of(archive)]
    drawn = random.Random(asked.seed).sample(runs, min(asked.runs, len(runs)))
    os.chdir(asked.data)  # configurations name files of this folder

    for file, archive, run in drawn:
        begin = perf_counter()
        name = printable(f"{file.name} {run.relative_to(archive.path)}")
        try:
            published = reading.read(run).summary
            with as_data_error(run / "summary.json"):
                digest, scores = published["weights_digest"], published["best"]["test"]
            with tempfile.TemporaryDirectory() as folder:
                again = fl.run(
                    config=run / "config.yaml",
                    output={"dir": folder},
                    tracking={"mlflow": False},  # the configuration may name a server
                    progress=False,
                    trust=asked.run_code,
                ).summary
        except (fl.UserError, fl.RunError) as error:
            failed += 1
            print(f"{name}: NOT TRAINED: {error}", flush=True)
            continue
        is_equal = again["weights_digest"] == digest
        is_same_score = again["best"]["test"] == scores
        failed += not (is_equal and is_same_score)
        said = "same digest" if is_equal else "ANOTHER DIGEST"
        said += ", same test metrics" if is_same_score else ", OTHER TEST METRICS"
        print(f"{name}: {said} ({perf_counter() - begin:.0f} s)", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
