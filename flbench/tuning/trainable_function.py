"""The training of a trial as a function for a Tuner of the user's own.

It is `TrialTraining`, the training of a study's trials, in a folder of the worker process. All that
a trial needs to continue is in the checkpoints that it reports.
"""

import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from ray import tune

from flbench.config.resolve import read, resolve
from flbench.config.sources import Layer, from_values, has_value, leaves
from flbench.core.errors import ConfigError, RunError
from flbench.data.federation import Federation
from flbench.tuning.reading import SECTIONS
from flbench.tuning.reported import reported
from flbench.tuning.study import TrainingJob
from flbench.tuning.training import TrialTraining
from flbench.workers.actor_pool import check_unchanged
from flbench.workers.shipping import Parcel

FOLDER: Final = "flbench"  # in the working directory of the trial
BLOCK: Final = "engine.block"
ORIGIN: Final = "config of a trial"
RESUME: Final = "tune.Tuner.restore(PATH, trainable=..., resume_errored=True)"


@dataclass(frozen=True)
class Base:
    """What all trials of a trainable have in common, without the samples.

    Attributes:
        method: Name of the method.
        config: The complete configuration without a trial's parameters, as a layer.
        files: Content of the files that a study folder has, by their paths.
        seed: Seed of the trials.
        deployment: Name of the deployment whose metrics are reported.
        test: Whether the test parts are evaluated after the last round.
        samples_sha256: SHA-256 (hex) of the samples.
        parcel: Objects of the user that the configuration names.
    """

    method: str
    config: Layer
    files: Mapping[str, bytes]
    seed: int
    deployment: str
    test: bool
    samples_sha256: str
    parcel: Parcel


def parameters(config: Mapping[str, Any], base: Layer) -> dict[str, Any]:
    """Return the parameters of a trial by their dotted keys; the keys are checked.

    Values are not checked: a trial whose value the method refuses fails alone.

    Args:
        config: The trial's config: values by dotted key, or in nested dicts.
        base: The configuration without the parameters.

    Raises:
        ConfigError: A key does not exist, or must be the same for all trials. The message has one
            line for each.
    """
    params = {
        key: value.item() if isinstance(value, np.generic) else value
        for key, value in leaves(dict(config)).items()
    }
    errors = [
        f"`{key}` ({ORIGIN}) cannot be searched: only `seed` and keys of {', '.join(SECTIONS)} can,"
        " because all trials share the data and their partition. Give it to fl.tuning.trainable."
        for key in params
        if key != "seed" and key.partition(".")[0] not in SECTIONS
    ]
    if "algorithm.name" in params:
        errors.append(
            f"`algorithm.name` ({ORIGIN}) cannot be searched. Make a trainable for each method."
        )
    if any(key.startswith("train.early_stopping.") for key in params):
        errors.append(
            f"`train.early_stopping` ({ORIGIN}) cannot be searched: the scheduler stops trials."
        )
    if base.tree.get("model", {}).get("lightning"):
        errors += [
            f"`{key}` ({ORIGIN}) cannot be searched: with `model.lightning` the module makes the"
            " optimizer."
            for key in params
            if key.startswith("train.optimizer.")
        ]
    if errors:
        raise ConfigError("\n".join(errors))
    if unknown := {key: value for key, value in params.items() if not has_value(base.tree, key)}:
        resolve([base, from_values(unknown, ORIGIN)])  # raises an error, or it is a free key
    return params


def rounds_of(params: Mapping[str, Any], base: Layer) -> int:
    """Return the number of rounds of a complete trial.

    Args:
        params: The trial's parameters by dotted key.
        base: The configuration without the parameters.

    Raises:
        ConfigError: The configuration refuses a value.
    """
    return resolve([base, from_values(params, ORIGIN)])[0].train.rounds


def request_resources(config: Mapping[str, Any], *, base: Layer, bundles: Any) -> Any:
    """Return the resources of a trial. Ray Tune calls this before the trial starts.

    Args:
        config: The trial's config.
        base: The configuration without the trial's parameters.
        bundles: Resources of each trial.

    Raises:
        ConfigError: The config has wrong keys.
    """
    parameters(config, base)
    return bundles


def train_trial(
    config: dict[str, Any], *, base: Base, samples: NDArray[Any], rest: Federation
) -> None:
    """Train one trial of Ray Tune from evaluation to evaluation, and report each of them.

    Every report has a checkpoint. If Ray Tune gives one, of this trial or of another, the training
    continues from it.

    Args:
        config: The trial's parameters by dotted key.
        base: What all trials have in common.
        samples: The samples, read-only, in memory that all trials on this machine share.
        rest: The federation without its samples.

    Raises:
        ConfigError: The method refuses the parameters.
        RunError: The models diverged, or a trial has changed the shared samples.
    """
    params = parameters(config, base.config)
    check_unchanged(samples, base.samples_sha256)
    context = tune.get_context()
    study = Path(context.get_storage().trial_working_directory) / FOLDER
    shutil.rmtree(study, ignore_errors=True)  # of an attempt that failed; the checkpoint has it all
    for name, content in base.files.items():
        (study / name).parent.mkdir(parents=True, exist_ok=True)
        (study / name).write_bytes(content)
    checkpoint = tune.get_checkpoint()
    with base.parcel.opened(), TemporaryDirectory() as held:
        saved = None if checkpoint is None else Path(checkpoint.to_directory(held))
        if saved is not None:
            params |= _block(saved)
        seed = params.pop("seed", base.seed)
        job = TrainingJob(base.method, 0, seed, params)
        rounds = rounds_of(params, base.config)
        training = TrialTraining(
            study,
            job,
            rest.with_samples(samples),
            metric="accuracy",
            rounds=rounds,
            deployment=base.deployment,
            test=base.test,
            resume=RESUME,
        )
        with closing(training):
            _raise_failure(training)
            if saved is not None:
                training.load(saved)
                if training.record["round"] >= rounds:
                    return
            _train(training, base, rounds)
    check_unchanged(samples, base.samples_sha256)


def _train(training: TrialTraining, base: Base, rounds: int) -> None:
    """Train to the end; report after each evaluation."""
    done = False
    while not done:
        done = training.step().done
        _raise_failure(training)
        record = training.record
        found = reported(training.folder.rows, record["seconds"], base.deployment, rounds)
        if done and base.test:
            found["weights_digest"] = training.weights_digest()
        with TemporaryDirectory() as folder:
            training.save(Path(folder))
            shutil.copy(training.folder.path / "config.yaml", folder)
            tune.report(found, checkpoint=tune.Checkpoint.from_directory(folder))


def _raise_failure(training: TrialTraining) -> None:
    """Raise why a trial has failed, if it has."""
    record = training.record
    if record["state"] == "failed":
        raise ConfigError(record["reason"])
    if record["state"] == "diverged":
        raise RunError(f"diverged with {dict(training.job.params)}: {record['reason']}")


def _block(saved: Path) -> dict[str, Any]:
    """Return `engine.block` of a checkpoint: the order of sums over a stack depends on its size."""
    config = read(saved / "config.yaml")
    return {} if config.engine.block is None else {BLOCK: config.engine.block}
