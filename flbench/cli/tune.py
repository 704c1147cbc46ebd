"""`flbench tune`: search hyper-parameters, and compare the tuned methods."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.cli import console
from flbench.cli.layers import one_run_per_method
from flbench.cli.show import show
from flbench.core.errors import ConfigError, RunError, UserError
from flbench.results import study_folder
from flbench.tracking import mirror

if TYPE_CHECKING:
    from flbench.tuning.prepare import Prepared
    from flbench.tuning.study import StudyFolder
    from flbench.tuning.supervisor import Supervisor


def refuse_with_resume(options: Mapping[str, object], overrides: Sequence[str]) -> None:
    """Raise a UserError if options or overrides were given that a resumed study cannot take."""
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if given or overrides:
        raise UserError(
            f"{', '.join(given) or ' '.join(overrides)} cannot be used with --resume: a resumed"
            " study keeps its methods, search spaces, configuration and folder. Only --concurrent,"
            " --gpus-per-trial, --retries and --address can change."
        )


def tune(
    algo: str | None, *, config: str | None, overrides: Sequence[str], options: dict[str, Any]
) -> None:
    """Check a study, make its folder, and carry it out.

    Args:
        algo: Names of the methods, separated by commas.
        config: Configuration file.
        overrides: Overrides `key=value`.
        options: Fields of `flbench.tuning.request.TuneRequest`.
    """
    if algo is None:
        raise UserError("name the methods to tune, separated by commas: --algo hfcd,fedavg.")
    layers = one_run_per_method(algo, config=config, overrides=overrides, out=None)
    _require_ray_tune()
    from flbench.tuning import prepare
    from flbench.tuning.cluster import cluster
    from flbench.tuning.request import TuneRequest
    from flbench.tuning.supervisor import Supervisor

    methods = tuple(name.strip() for name in algo.split(","))
    with Supervisor() as supervisor:
        prepared = prepare.prepare(
            TuneRequest(methods, **options), dict(zip(methods, layers, strict=True))
        )
        mirror.check(prepared.config.tracking)
        console.notes(prepared.notes)
        # The cluster is checked before a folder is made.
        with cluster(prepared.resources, supervisor):
            folder = prepare.create(prepared, ["flbench", *sys.argv[1:]])
            _carry_out(folder, prepared, supervisor)


def resume(path: Path, resources: dict[str, Any]) -> None:
    """Resume an interrupted study.

    Args:
        path: Study folder.
        resources: Fields of `flbench.tuning.request.TuneRequest` that change.
    """
    _require_ray_tune()
    from flbench.tuning import driver, prepare, study_page
    from flbench.tuning.cluster import cluster
    from flbench.tuning.study import StudyFolder
    from flbench.tuning.supervisor import Supervisor

    with Supervisor() as supervisor, closing(StudyFolder.reopen(path)) as folder:
        supervisor.note = _how_to_resume(folder)
        prepared = prepare.reopen(folder, resources)
        if driver.is_over(folder, prepared):
            # The process may have been killed before it wrote the report.
            study_page.write(folder.path)
            console.notes([f"{path} is finished: there is nothing to resume."])
            show([folder.path])
            return
        with cluster(prepared.resources, supervisor):
            _carry_out(folder, prepared, supervisor)


def _require_ray_tune() -> None:
    """Raise a ConfigError if Ray Tune is not installed."""
    try:
        import ray.tune  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"flbench tune needs the package `{error.name}`, which is not installed:"
            " pip install 'flbench[tune]'"
        ) from error


def _how_to_resume(folder: "StudyFolder") -> str:
    return f"Resume with: {folder.resume_command}"


def _carry_out(folder: "StudyFolder", prepared: "Prepared", supervisor: "Supervisor") -> None:
    """Train what is left of a study, write its report, and print its tables.

    Raises:
        RunError: No trial of any method has a score, or a server of Ray was lost.
        KeyboardInterrupt: A stop signal has arrived.
    """
    from flbench.tuning import driver, study_page
    from flbench.tuning.failures import search_failure

    request = prepared.request
    supervisor.note = _how_to_resume(folder)
    supervisor.report = partial(study_page.write, folder.path)
    console.notes(
        [
            f"{folder.path}: {request.trials} trials of {prepared.settings.rounds} rounds for each"
            f" of {', '.join(request.methods)}, {prepared.resources.concurrent} at once; then final"
            f" trainings of the default and the best parameters with {request.seeds} seeds."
        ]
    )
    with mirror.Mirrors() as mirrors:
        mirrors.open(folder.path, prepared.config, lambda note: console.notes([note]))
        try:
            driver.carry_out(folder, prepared, supervisor)
        except KeyboardInterrupt:
            console.notes([f"interrupted. {supervisor.note}"])
            raise
        finally:
            supervisor.write_report()
            folder.close()
    show([folder.path])
    console.notes(mirrors.finish())
    if failure := search_failure(study_folder.read(folder.path)):
        raise RunError(
            f"{folder.path}: {failure}. The reasons are above, and in {folder.path / 'study.md'}."
        )
