"""The mirror and the report of a study read the same trials."""

import json
import random

import pytest

from flbench.core.errors import DataError
from flbench.results import study_folder
from flbench.tracking.study_folder import best_folder, trial_folders
from tests.tuning.studies import begin, trial, write

SCORES = (None, float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 0.5, 0.75, 1, 1.0)


def test_winner_is_that_of_the_report(tmp_path, subtests):
    for seed in range(40):
        draw = random.Random(seed)
        study = begin(tmp_path / f"study{seed}", "hfcd")
        for index in range(draw.randrange(7)):
            state = draw.choice(["finished", "finished", *study_folder.STATES])
            trial(study, "hfcd", index, draw.choice(SCORES), state=state)

        found, damaged = trial_folders(study / "trials" / "hfcd")

        mirrored, reported = best_folder(found), study_folder.read(study).winner("hfcd")
        with subtests.test(seed=seed):
            assert not damaged
            assert (mirrored and mirrored.trial) == reported
            assert mirrored is None or mirrored.path.name == f"{reported.index:03d}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[(key, None) for key in ("method", "kind", "state", "params", "round", "started")],
        *[
            ("index", "three"),
            ("params", 3),
            ("started", "yesterday"),
            ("ended", "now"),
            ("of", "a"),
        ],
    ],
)
def test_invalid_trial_json_is_an_error_and_the_other_trials_are_read(tmp_path, key, value):
    study = begin(tmp_path / "study", "hfcd")
    trial(study, "hfcd", 0, 0.5)
    broken = trial(study, "hfcd", 1, 0.6)
    file = study / "trials" / "hfcd" / "001" / "trial.json"
    write(file, {k: v for k, v in broken.items() if k != key} | ({key: value} if value else {}))

    found, [error] = trial_folders(study / "trials" / "hfcd")

    assert [each.path.name for each in found] == ["000"]
    assert str(error).startswith(f"{file} is damaged (")


@pytest.mark.parametrize("key", ["id", "created", "metric", "trials", "seeds", "methods"])
def test_header_without_a_key_is_an_error(tmp_path, key):
    file = begin(tmp_path / "study", "hfcd") / "study.json"
    about = json.loads(file.read_text())
    whole = study_folder.read_header(file.parent)
    del about[key]
    write(file, about)

    assert tuple(whole.methods) == ("hfcd",)
    with pytest.raises(DataError, match=f"study.json is damaged .`{key}` is missing"):
        study_folder.read_header(file.parent)
