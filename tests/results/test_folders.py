"""Finding runs below a folder."""

from flbench.results import folders


def test_copies_in_the_local_store_of_mlflow_are_no_runs(tmp_path):
    copy = tmp_path / "mlflow" / "artifacts" / "0123" / "artifacts"
    for folder in (tmp_path / "runs" / "a", copy):
        folder.mkdir(parents=True)
        (folder / "config.yaml").touch()
    (tmp_path / "mlflow" / "flbench.db").touch()

    assert folders.find([tmp_path]) == [tmp_path / "runs" / "a"]
