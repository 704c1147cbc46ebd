"""What the commands do."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.cli import console, progress
from flbench.config.resolve import resolve
from flbench.config.schema import Config, EngineConfig
from flbench.config.sources import Layer, from_file, from_overrides
from flbench.config.yaml_text import to_yaml
from flbench.core import files
from flbench.core.errors import ConfigError, RunError, UserError
from flbench.tracking import mirror

if TYPE_CHECKING:
    from flbench.data.federation import Federation
    from flbench.tuning.prepare import Prepared
    from flbench.tuning.study import StudyFolder


def layers(config: str | None, overrides: Sequence[str], out: str | None = None) -> list[Layer]:
    """Return the layers of one run: the file, the overrides, the options."""
    for option, value in (("--config", config), ("--out", out)):
        if value == "":
            raise UserError(f"{option} is empty. Give a path, or leave it out.")
    found = [] if config is None else [from_file(Path(config))]
    found.append(from_overrides(overrides))
    if out is not None:
        found.append(Layer({"output": {"dir": out}}, {"output.dir": "--out"}))
    return found


def runs(
    algo: str | None, *, config: str | None, overrides: Sequence[str], out: str | None
) -> list[list[Layer]]:
    """Return the layers of each run: one for each method that `--algo` names.

    Of several methods, each takes the keys `algorithm.KEY` that it has; one that none has is an
    error.
    """
    if algo is None:
        return [layers(config, overrides, out)]
    names = [name.strip() for name in algo.split(",")]
    for name in names:
        if not name or names.count(name) > 1:
            raise UserError(
                f"--algo {algo}: " + (f"`{name}` stands twice." if name else "a name is empty.")
            )
    found = []
    for name in names:
        mine = overrides if len(names) == 1 else _fitting(name, names, overrides)
        chosen = Layer({"algorithm": {"name": name}}, {"algorithm.name": "--algo"})
        found.append([*layers(config, mine, out), chosen])
    return found


def _fitting(name: str, names: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return the overrides without the keys that only other methods of the comparison have."""
    from flbench.algorithms import ALGORITHMS

    keys = {other: set(ALGORITHMS.find(other).Config.model_fields) for other in names}
    mine = []
    for item in overrides:
        section, _, key = item.partition("=")[0].strip().partition(".")
        others = [other for other in names if key in keys[other]]
        if section != "algorithm" or not key or not others or key in keys[name]:
            mine.append(item)
        else:
            console.notes([f"{section}.{key} is set for {', '.join(others)}, which {name} lacks."])
    return mine


def run(runs: Sequence[list[Layer]]) -> None:
    """Run one experiment after the other and print their tables."""
    # All configurations are checked before the first run starts.
    resolved = [resolve(found) for found in runs]
    for config, _ in resolved:
        mirror.check(config.tracking)
    from flbench.experiment import lifecycle

    names = [config.algorithm.name for config, _ in resolved]
    folders: list[Path] = []
    with mirror.Mirrors() as mirrors:
        for config, origins in resolved:
            title = f"{config.algorithm.name} on {config.data.name}"
            try:
                with progress.reporter(title) as reporter:
                    folders.append(lifecycle.run(config, origins, reporter, mirrors.open))
            except KeyboardInterrupt:
                if waiting := names[len(folders) + 1 :]:
                    console.notes([f"not started: {', '.join(waiting)}."])
                raise
    show(folders)
    console.notes(mirrors.finish())
    _refuse_nothing_learnt(folders)


def resume(path: Path, overrides: Sequence[str]) -> None:
    """Go on with a run."""
    from flbench.experiment import lifecycle

    with mirror.Mirrors() as mirrors, progress.reporter(f"resuming {path}") as reporter:
        lifecycle.resume(path, from_overrides(overrides), reporter, mirrors.open)
    show([path])
    console.notes(mirrors.finish())
    _refuse_nothing_learnt([path])


def _refuse_nothing_learnt(paths: Sequence[Path]) -> None:
    """Raise a RunError for runs in which no client ever finished a training."""
    from flbench.results import reading

    failed = []
    for path in paths:
        summary = reading.read(path).summary
        vain = summary["diverged"] + summary["trainings_without_step"]
        if vain and vain == summary["client_trainings"]:
            failed.append(
                f"{path}: no client finished a training ({summary['diverged']} diverged,"
                f" {summary['trainings_without_step']} took no step). Lower train.optimizer.lr, set"
                " train.clip, or look at train.batch_size and train.last_batch."
            )
    if failed:
        raise RunError("\n".join(failed))


def show(paths: Sequence[Path], picture: Path | None = None) -> None:
    """Print the tables of runs and studies, and draw the runs' curves if asked."""
    from flbench.results import reading
    from flbench.results import study_folder as studies

    if picture is not None:
        from flbench.reports import figures

        figures.check(picture)
    runs, found, damaged = [], [], []
    for path in dict.fromkeys(paths):
        try:
            if studies.is_study(path):
                found.append(studies.read(path))
            else:
                runs.append(reading.read(path))
        except UserError as error:
            damaged.append(str(error))
    for study in found:
        console.study(study)
    if runs:
        console.show(runs)
    if runs and picture is not None:
        lines = [(run.summary["algorithm"], run.rows) for run in runs]
        figures.save(figures.curves(lines), picture)
    elif found and picture is not None:
        damaged.append("--picture draws the curves of runs; a study's pictures are in report.html.")
    if damaged:
        raise UserError("\n".join(damaged))


def sync(paths: Sequence[Path], uri: str | None) -> None:
    """Send to MLflow what it does not have of runs and studies."""
    from flbench.tracking import follow

    for path in paths:
        follow.kind_of(path)  # before anything is sent
    for path in paths:
        sent, address = follow.sync(path, uri)
        console.sent(path, sent, address)


def ui(uri: str | None, port: int) -> None:
    """Serve MLflow's pages until Ctrl-C."""
    from flbench.tracking import mlflow_ui

    mlflow_ui.serve(uri, port, console.text)


def print_config(runs: Sequence[list[Layer]]) -> None:
    """Print the resolved configurations with the origin of each value."""
    for found in runs:
        config, origins = resolve(found)
        console.text(to_yaml(config.tree(), origins))


def dry_run(runs: Sequence[list[Layer]]) -> None:
    """Print what runs would be, and estimates from a few measured steps."""
    resolved = [resolve(found) for found in runs]
    from flbench.experiment import assembly, estimate

    for config, origins in resolved:
        built = assembly.build(config)
        console.text(to_yaml(built.config.tree(), origins))
        console.notes(built.notes)
        console.partition(built.federation)
        try:
            console.estimate(estimate.measure(built))
        finally:
            built.engine.close()


def algos(name: str | None, *, as_json: bool) -> None:
    """List methods, or show one."""
    from flbench.algorithms import catalogue

    if name is None:
        methods = catalogue.methods()
        console.json(methods) if as_json else console.methods(methods)
        return
    method = catalogue.method(name)
    console.json(method) if as_json else console.method(method)


def data(
    name: str | None,
    overrides: Sequence[str],
    *,
    config: str | None,
    save: Path | None,
    picture: Path | None,
    topology: str | None,
    as_json: bool,
) -> None:
    """List data sets, or show one and its partition, or who would mix whose model."""
    from flbench.data import catalogue
    from flbench.experiment.assembly import load_federation

    asked = bool(overrides or config or save or picture or topology is not None)
    found = layers(config, overrides)
    if topology is not None:
        method = Layer({"algorithm": {"name": "dfedavg"}}, {"algorithm.name": "--topology"})
        named = Layer({"algorithm": {"topology": topology}}, {"algorithm.topology": "--topology"})
        found = [method, *found, named]
    if name is not None:
        found.append(Layer({"data": {"name": name}}, {"data.name": "command line"}))
    resolved, _ = resolve(found)
    if name is None and not asked:
        sets = catalogue.data_sets(resolved.data)
        console.json(sets) if as_json else console.data_sets(sets, resolved.data)
        return
    if not asked and not catalogue.is_available(resolved.data):
        entry = catalogue.data_set(resolved.data)
        console.json(entry) if as_json else console.data_set(entry)
        return
    federation = load_federation(resolved)
    if save is not None:
        _save_partition(save, federation, resolved)
    if topology is not None:
        _topology(resolved, federation.clients, picture, as_json=as_json)
        return
    if picture is not None:
        from flbench.reports import figures

        figures.save(figures.partition(federation), picture)
    console.json(catalogue.partition(federation)) if as_json else console.partition(federation)


def _topology(config: Config, clients: int, picture: Path | None, *, as_json: bool) -> None:
    """Show who would mix whose model in the first round, if all clients take part."""
    import torch

    from flbench.algorithms import catalogue
    from flbench.algorithms.shared.gossip import GossipConfig
    from flbench.algorithms.shared.topology import mixing_rows, places
    from flbench.core.rng import Draw

    method = config.algorithm
    assert isinstance(method, GossipConfig)  # another one has no key `topology`
    draw = Draw(config.seed, (0,), clients)
    graph = method.wiring().graph(draw, torch.arange(clients))
    rows = mixing_rows(graph, method.mixing)
    entry = catalogue.network(method, graph, rows)
    if picture is not None:
        from flbench.reports import figures

        title = f"{method.topology}: {clients} clients" + (
            ", first round" if method.topology == "random" else ""
        )
        spots = places(method.topology, clients)
        figures.save(figures.topology(graph, rows, spots, title), picture)
    console.json(entry) if as_json else console.network(entry)


def bench(
    engines: Sequence[str],
    overrides: Sequence[str],
    *,
    config: str | None,
    repeats: int,
    rounds: int,
    out: Path,
    as_json: bool,
) -> None:
    """Measure engines and write what was found."""
    engines = [name.strip() for name in engines]
    asked = resolve(layers(config, overrides))[0].engine.name
    if asked != EngineConfig().name and asked not in engines:
        raise ConfigError(
            f"`engine.name`={asked} would not be measured: engines are named by --engines"
            f" {','.join([*engines, asked])}."
        )
    configs = []
    for name in engines:
        method = Layer({"algorithm": {"name": "fedavg"}}, {"algorithm.name": "bench"})
        engine = Layer({"engine": {"name": name}}, {"engine.name": "--engines"})
        configs.append(resolve([method, *layers(config, overrides), engine])[0])
    from flbench.bench import measure as measurement
    from flbench.bench import page

    out.mkdir(parents=True, exist_ok=True)
    cases = measurement.compare(configs, repeats=repeats, run_rounds=rounds)
    found = {
        "settings": configs[0].tree(),
        "cases": [case.tree() for case in cases],
    }
    files.write(out / "bench.json", (json.dumps(found, indent=1) + "\n").encode())
    files.write(out / "bench.html", page.render(cases, configs[0], rounds).encode())
    console.json(found) if as_json else console.bench(cases)
    if not as_json:
        console.text(f"{out / 'bench.json'}\n{out / 'bench.html'}\n")


def tune(algo: str, *, config: str | None, overrides: Sequence[str], asked: dict[str, Any]) -> None:
    """Check a study, make its folder, and carry it out."""
    found = runs(algo, config=config, overrides=overrides, out=None)
    _need_tune()
    from flbench.tuning import prepare
    from flbench.tuning.cluster import cluster
    from flbench.tuning.request import Request

    methods = tuple(name.strip() for name in algo.split(","))
    prepared = prepare.prepare(Request(methods, **asked), dict(zip(methods, found, strict=True)))
    mirror.check(prepared.config.tracking)
    console.notes(prepared.notes)
    with cluster(prepared.resources):  # what it cannot give is said before a folder is made
        _study(prepare.create(prepared, ["flbench", *sys.argv[1:]]), prepared)


def resume_study(path: Path, changed: dict[str, Any]) -> None:
    """Go on with a study."""
    _need_tune()
    from flbench.tuning import driver, prepare
    from flbench.tuning import study_page as report
    from flbench.tuning.cluster import cluster
    from flbench.tuning.study import StudyFolder

    folder = StudyFolder.reopen(path)
    try:
        prepared = prepare.reopen(folder, changed)
        if driver.is_over(folder, prepared):
            report.write(folder.path)  # it may have been killed before
            console.notes([f"{path} is finished: there is nothing to go on with."])
            show([folder.path])
            return
        with cluster(prepared.resources):
            _study(folder, prepared)
    finally:
        folder.close()


def _need_tune() -> None:
    """Raise a ConfigError if Ray Tune is not installed."""
    try:
        import ray.tune  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"flbench tune needs the package `{error.name}`, which is not installed:"
            " pip install 'flbench[tune]'"
        ) from error


def _study(folder: "StudyFolder", prepared: "Prepared") -> None:
    """Carry out what is left of a study, report it, and show it."""
    from flbench.tuning import driver
    from flbench.tuning import study_page as report

    asked = prepared.request
    console.notes(
        [
            f"{folder.path}: {asked.trials} trials of {prepared.rules.rounds} rounds for each of"
            f" {', '.join(asked.methods)}, {prepared.resources.concurrent} at once, then {asked.seeds}"
            " seeds of the defaults and of the best."
        ]
    )
    with mirror.Mirrors() as mirrors:
        mirrors.open(folder.path, prepared.config)
        try:
            driver.carry_out(folder, prepared)
        except KeyboardInterrupt:
            console.notes([f"interrupted. Go on with: flbench tune --resume {folder.path}"])
            raise
        finally:
            report.write(folder.path)
            folder.close()
    show([folder.path])
    console.notes(mirrors.finish())
    _refuse_nothing_found(folder.path)


def _refuse_nothing_found(path: Path) -> None:
    """Raise a RunError for a study in which no trial of any method has a score."""
    from flbench.results import study_folder as studies

    study = studies.read(path)
    if all(study.winner(method) is None for method in study.methods):
        raise RunError(
            f"{path}: no trial ran to its end with a score. The reasons are above, and in"
            f" {path / 'study.md'}."
        )


def reproduce(paper: str | None, *, dry_run: bool, **asked: Any) -> None:
    """List the papers, or measure tables of one and print published figures beside ours."""
    from flbench.reproduce import library, measure, plan, report, request, runs, writing

    if paper is None:
        if any(asked[name] for name in ("overrides", "tables", "dataset", "algos")):
            raise UserError(f"name a paper: {', '.join(library.names())}.")
        console.papers({name: library.load(name) for name in library.names()})
        return
    planned = plan.make(request.Request(paper, **asked))
    shelf = runs.Shelf(planned.request.output)
    states = {job.title: runs.state_of(job, shelf) for job in planned.jobs.values()}
    count = Counter(states.values())
    parts = [f"{number} {state}" for state, number in count.items()]
    console.notes([*planned.notes, f"{len(states)} runs: {', '.join(parts) or 'nothing to do'}."])
    if dry_run:
        console.jobs(states)
        absent = report.make(planned, runs.Done()).absent
        console.absent([item for item in absent if item.why != measure.NOT_YET])
        return
    done = runs.Done()
    try:
        runs.carry_out(planned, shelf, progress.reporter, done)
    finally:
        # Also after Ctrl-C: what is there is worth a report.
        runs.collect(planned, shelf, done)
        found = report.make(planned, done)
        if found.blocks:
            paths = writing.write(found, planned.request.output)
            console.report(found, paths)
    if not found.blocks:
        raise UserError(report.nothing(found))


def _save_partition(path: Path, federation: "Federation", config: Config) -> None:
    from flbench.data import partition_files

    if path.suffix != ".npz":
        raise UserError(f"--save needs a file that ends with .npz, got {path}.")
    partition_files.save(federation.partition, federation.dataset, config.partition, path)
    console.text(f"partition saved to {path} and {path.with_suffix('.json').name}\n")
