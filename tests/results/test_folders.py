"""Finding runs below a folder."""

import pytest

from flbench.core.errors import UserError
from flbench.results import folders


def test_search_of_a_folder_with_too_many_others_is_refused_soon(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "MOST_OTHERS", 20)
    for k in range(40):
        (tmp_path / "runs" / f"{k:02d}").mkdir(parents=True)
        (tmp_path / "runs" / f"{k:02d}" / "config.yaml").touch()
    for k in range(17):
        (tmp_path / "other" / f"{k:02d}").mkdir(parents=True)

    assert len(folders.find([tmp_path])) == 40  # and 20 others

    (tmp_path / "other" / "one more").mkdir()
    with pytest.raises(UserError, match="more than 20 folders below it that are not runs"):
        folders.find([tmp_path])


def test_copies_in_the_local_store_of_mlflow_are_no_runs(tmp_path):
    copy = tmp_path / "mlflow" / "artifacts" / "0123" / "artifacts"
    for folder in (tmp_path / "runs" / "a", copy):
        folder.mkdir(parents=True)
        (folder / "config.yaml").touch()
    (tmp_path / "mlflow" / "flbench.db").touch()

    assert folders.find([tmp_path]) == [tmp_path / "runs" / "a"]
