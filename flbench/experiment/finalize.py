"""What a finished run writes: tables, summary, report."""

from collections.abc import Iterator

import torch
from torch import Tensor

from flbench.config.schema import Config
from flbench.core.tree import digest
from flbench.core.types import State
from flbench.experiment import checkpoint
from flbench.experiment.assembly import Experiment
from flbench.experiment.evaluation_tables import (
    CLASS_HEADER,
    CLIENT_HEADER,
    class_table,
    client_table,
    confusion_table,
    metric_rows,
)
from flbench.experiment.loop import FederatedLoop, Seconds
from flbench.experiment.run_folder import RunFolder
from flbench.reports import page
from flbench.results import reading
from flbench.results.summary import (
    Summary,
    best_round,
    cost_to_reach,
    last_round,
    metrics_at,
    totals,
)


def write(experiment: Experiment, loop: FederatedLoop, state: State) -> None:
    """Evaluate the best round's models, and write all that is written once, the summary last.

    Args:
        experiment: that was run.
        loop: that ran it.
        state: after the last round.
    """
    config, evaluator, folder, seconds = loop.config, loop.evaluator, loop.folder, loop.seconds
    with seconds.measure("evaluate"):
        last = loop.last or evaluator.evaluate(state, loop.evaluation_settings(state), common=False)
        evaluations = {"last": (last, state)}
        better = _best_state(loop, state)
        if better is not None:
            known = any(row[:2] == (better.round, "common") for row in folder.rows)
            evaluation = evaluator.evaluate(
                better, loop.evaluation_settings(better), common=not known
            )
            evaluations["best"] = (evaluation, better)
            lines = metric_rows(evaluation, experiment.class_groups)
            there = {row[:4] for row in folder.rows}
            # What was evaluated on the way stays as it is: a final's test parts were not.
            folder.add_metrics([row for row in lines if row[:4] not in there])
        weights = digest(evaluator.deployed(state, loop.evaluation_settings(state)))
    names, counts = experiment.federation.dataset.classes, experiment.class_groups.train_counts
    clients, classes = [], []
    for moment, (evaluation, evaluated) in evaluations.items():
        clients += client_table(
            moment, evaluation.local["personal", "test"], counts, evaluated.participation_count
        )
        classes += class_table(moment, evaluation, experiment.class_groups, names)
    folder.write_table("clients.csv", CLIENT_HEADER, clients)
    folder.write_table("per_class.csv", CLASS_HEADER, classes)
    folder.write_table(
        "confusion.csv", ("split", "true", "predicted", "count"), confusion_table(last)
    )
    if config.output.predictions:
        _write_predictions(
            folder, experiment, evaluator.predictions(state, loop.evaluation_settings(state))
        )
    _finish(folder, config, _summary(experiment, folder, state, weights, seconds))


def _best_state(loop: FederatedLoop, state: State) -> State | None:
    """Return the state after the best round by validation; None if that is the last round."""
    best = best_round(loop.folder.rows)
    if best is None or best == state.round:
        return None
    saved, _ = checkpoint.load(loop.folder.checkpoint("best"), loop.config.hash())
    if saved.round == best:
        return saved
    loop.reporter.warn(
        f"the checkpoint of the best round holds round {saved.round}, not {best}: the tables by"
        " class and client leave the best round out."
    )
    return None


def _finish(folder: RunFolder, config: Config, summary: Summary) -> None:
    """Write the report, and last of all the summary: a folder that has one is finished."""
    classes = reading.read_classes(folder.path)
    run = reading.Run(folder.path, config, summary, folder.rows, classes, finished=True)
    folder.write("report.html", page.render(run))
    folder.write_json("summary.json", summary)


def _summary(
    experiment: Experiment, folder: RunFolder, state: State, weights: str, seconds: Seconds
) -> Summary:
    """Return summary.json: the last round, the best by validation, the price, the digest."""
    config, rows = experiment.config, folder.rows
    last, best = last_round(rows) or 0, best_round(rows)
    summary: Summary = {
        "algorithm": config.algorithm.name,
        "dataset": experiment.federation.dataset.name,
        "model": config.model.name,
        "seed": config.seed,
        "rounds": config.train.rounds,
        "clients": experiment.federation.clients,
        "partition_hash": experiment.federation.partition.hash(),
        "config_hash": config.hash(),
        "weights_digest": weights,
        "last": metrics_at(rows, last),
        "best": metrics_at(rows, last if best is None else best),
        "best_by": "validation accuracy"
        if best is not None
        else "no validation part: the last round",
        **totals(rows),
        "clients_never_trained": int((state.participation_count == 0).sum()),
        "seconds": {name: round(value, 3) for name, value in vars(seconds).items()},
        "engine": {
            "name": config.engine.name,
            "device": config.engine.device,
            "precision": config.engine.precision,
            "threads": config.engine.threads,
            "torch": torch.__version__,
            **experiment.engine.report(),
        },
        "notes": list(experiment.notes),
    }
    summary["notes"] += _failure_notes(summary)
    if config.evaluation.target_accuracy is not None:
        summary["target"] = cost_to_reach(config.evaluation.target_accuracy, rows)
    return summary


def _failure_notes(summary: Summary) -> list[str]:
    """Return what went wrong while training, in a sentence each."""
    total, said = summary["client_trainings"], []
    for key, what in (
        ("diverged", "diverged and were left out"),
        ("trainings_without_step", "took no step"),
    ):
        if summary[key]:
            said.append(f"{summary[key]} of {total} client trainings {what}.")
    return said


def _write_predictions(
    folder: RunFolder, experiment: Experiment, predictions: Iterator[tuple[int, Tensor]]
) -> None:
    """Write predictions.csv: client, row of the data set, true class, predicted class."""
    federation = experiment.federation
    lines: list[tuple[object, ...]] = []
    for client, predicted in predictions:
        rows = federation.partition.parts["test"][client]
        truth = federation.dataset.y[rows]
        lines += zip(
            [client] * len(rows), rows.tolist(), truth.tolist(), predicted.tolist(), strict=True
        )
    folder.write_table("predictions.csv", ("client", "sample", "true", "predicted"), lines)
