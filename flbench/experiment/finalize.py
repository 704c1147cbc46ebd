"""Files of a finished run: tables, report and summary."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from flbench.config.resolve import changed
from flbench.core.tree import digest_of_models
from flbench.core.types import State
from flbench.experiment import checkpoint, rounds
from flbench.experiment.assembly import Experiment
from flbench.experiment.loop import FederatedLoop
from flbench.experiment.predictions import positive_class
from flbench.experiment.run_folder import RunFolder
from flbench.results import reading
from flbench.results.summary import Summary


def write(loop: FederatedLoop, state: State) -> Summary:
    """Evaluate the models of the best round and write the files of a finished run.

    The summary is written last: a folder with a summary is finished.

    Returns:
        The content of summary.json.

    Raises:
        RunError: A model has weights that are not finite, or the disk failed.
    """
    experiment, evaluator, folder = loop.experiment, loop.evaluator, loop.folder
    config, algorithm, seconds = loop.config, loop.algorithm, loop.seconds
    settings = rounds.evaluation_settings(algorithm, state)
    with seconds.measure("evaluate"):
        last = loop.last or evaluator.evaluate(state, settings, common=False)
        evaluations = {"last": (last, state)}
        if (better := _best_state(loop, state)) is not None:
            of_better = rounds.evaluation_settings(algorithm, better)
            known = any(row[:2] == (better.round, "common") for row in folder.rows)
            evaluation = evaluator.evaluate(better, of_better, common=not known)
            evaluations["best"] = (evaluation, better)
            # The common test set is not evaluated in every round (`evaluation.common.every`).
            folder.add_missing_metrics(evaluator.judge.rows(evaluation))
        weights = weights_digest(loop, state)
    if config.output.predictions:
        with seconds.measure("write"):
            _write_predictions(folder, experiment, evaluator.predictions(state, settings))
    engine = experiment.engine.report()
    about_new: dict[str, Summary] = {}
    if experiment.federation.new is not None:
        with seconds.measure("evaluate"):
            states = {moment: one for moment, (_, one) in evaluations.items()}
            about_new = {"new_clients": _evaluate_new_clients(loop, states)}
    with seconds.measure("write"):
        for name, header, rows in evaluator.judge.tables(evaluations):
            folder.write_table(name, header, rows)
        _write_learned(folder, experiment, state)
    summary = _summary(loop, state, weights, engine) | about_new
    tables = reading.read_tables(folder.path, config)
    run = reading.StoredRun(
        folder.path,
        config,
        summary,
        folder.rows,
        finished=True,
        classes=tables["classes"],
        clients=tables["clients"],
    )
    from flbench.reports import run as run_report  # it loads matplotlib

    folder.write("report.html", run_report.render(run))
    folder.write_json("summary.json", summary)
    return summary


def _evaluate_new_clients(loop: FederatedLoop, states: Mapping[str, State]) -> Summary:
    """Evaluate the clients that join after the training; write metrics and new_clients.csv.

    The engine of the run is closed before: workers of both would need the processors at once.

    Args:
        loop: Loop that ran the rounds.
        states: State by moment, `last` and, if it is another round, `best`.

    Returns:
        What summary.json says of these clients.
    """
    from flbench.experiment.new_clients import NewClients

    loop.experiment.engine.close()
    clients = NewClients(loop.experiment, loop.callbacks.on_note)
    try:
        found = {moment: clients.evaluate(state) for moment, state in states.items()}
        for moment, state in states.items():
            loop.folder.add_missing_metrics(clients.rows(found[moment], state.round))
        loop.folder.write_table("new_clients.csv", *clients.table(found))
        return clients.summary(found["last"])
    finally:
        clients.close()


def weights_digest(loop: FederatedLoop, state: State) -> str:
    """Return the digest of all clients' personal models."""
    settings = rounds.evaluation_settings(loop.algorithm, state)
    return digest_of_models(loop.evaluator.hashed(state, settings))


def _best_state(loop: FederatedLoop, state: State) -> State | None:
    """Return the state after the best round by validation; None if it is the last or not stored."""
    best = loop.running.best
    if best is None or best == state.round:
        return None
    config_hash, storage = loop.config.hash(), loop.experiment.storage
    saved = checkpoint.read(loop.folder.checkpoint("best"), config_hash, storage).state
    return saved if saved.round == best else None


def _summary(
    loop: FederatedLoop,
    state: State,
    weights: str,
    engine: Mapping[str, float],
) -> Summary:
    """Return the content of summary.json; see `flbench.results.summary.Summary`.

    Args:
        loop: Loop that ran the rounds.
        state: State after the last round.
        weights: SHA-256 over the weights of all clients' models after the last round.
        engine: What the engine reports of itself.
    """
    experiment, rows = loop.experiment, loop.folder.rows
    config, federation = experiment.config, experiment.federation
    by, best = config.evaluation.best, loop.running.best
    notes = [*experiment.notes, *loop.memory.notes]
    summary: Summary = {
        **reading.so_far(config, rows),
        "dataset": federation.dataset.name,
        "paper": experiment.algorithm.paper.citation,
        "changed": changed(config),
        "clients": federation.clients,
        "partition_hash": federation.partition.hash(),
        "config_hash": config.hash(),
        "weights_digest": weights,
        "best_by": "no validation part: the last round"
        if best is None
        else f"validation {by.title}",
        "clients_never_trained": int((state.participation_count == 0).sum()),
        "seconds": {name: round(value, 3) for name, value in vars(loop.seconds).items()},
        "engine": {
            "name": config.engine.name,
            "device": config.engine.device,
            "precision": config.engine.precision,
            "threads": config.engine.threads,
            "torch": torch.__version__,
            **engine,
        },
        # The notes of a resumed run are those of the run without the interruption, except for times
        # and the machine, which are in `seconds` and `engine`.
        "notes": notes,
    }
    if federation.classes == 2 and config.has_classes:
        names = federation.dataset.classes
        summary["positive_class"] = names[positive_class(config.evaluation, names)]
    for key, what in (
        ("diverged", "diverged and were left out"),
        ("trainings_without_step", "took no step"),
    ):
        if summary[key]:
            total = summary["client_trainings"]
            notes.append(f"{summary[key]} of {total} client trainings {what}.")
    stop = loop.memory.stop
    if stop is not None and stop.round is not None:
        summary["stopped"] = {"round": stop.round, "reason": stop.reason}
    return summary


def _write_learned(folder: RunFolder, experiment: Experiment, state: State) -> None:
    """Write what the method has learned besides the models, if it has learned anything."""
    draw = rounds.settings_of(experiment.algorithm, state).draw
    with rounds.seeded_method(experiment.algorithm, draw, 4):
        if not (found := experiment.algorithm.learned(state)):
            return
        from flbench.results import learned

        text = learned.text_of(found)
    folder.write(learned.NAME, text)


def _write_predictions(
    folder: RunFolder, experiment: Experiment, predictions: Iterator[tuple[int, Tensor]]
) -> None:
    """Write predictions.csv: client, row of the data set, true class, predicted class.

    The name of a client stands behind its number if the clients have names.

    Args:
        folder: Run folder.
        experiment: The experiment.
        predictions: Client ids, each with the predicted classes of the client's test part.
    """
    federation = experiment.federation
    names = federation.partition.names
    lines: list[tuple[object, ...]] = []
    for client, predicted in predictions:
        rows = federation.partition.parts["test"][client]
        who = (client, names[client]) if names else (client,)
        truth = federation.labels[rows]
        lines += [
            (*who, *sample)
            for sample in zip(rows.tolist(), truth.tolist(), predicted.tolist(), strict=True)
        ]
    header = ("client", "name") if names else ("client",)
    folder.write_table("predictions.csv", (*header, "sample", "true", "predicted"), lines)
