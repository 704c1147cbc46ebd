"""The parameters of the trials of a method, which Optuna proposes."""

from collections.abc import Mapping
from hashlib import sha256
from itertools import islice
from typing import Any, Final

from flbench.core.errors import ConfigError
from flbench.core.rng import generator
from flbench.results.study_folder import Trial
from flbench.tuning.search_space import Params, Space

LEAST, MOST, SHARE = 4, 10, 3
"""TPE draws one trial in SHARE at random, at least LEAST and at most MOST of them."""
CANDIDATES: Final = 24
"""Optuna's default of TPE. It is given to Optuna, as all that proposals depend on."""


class Proposals:
    """Proposes the trials of a method: the default parameters first, then those of Optuna.

    Trials are asked for in batches, and their results are told when all trials so far have ended:
    proposals depend on seed and results, not on when these came. A search that does not learn has
    one batch. A stopped trial ranks below all finished ones, and higher the more rounds it has
    done; one that diverged or failed ranks lowest.

    Args:
        search: Name of the search: random, grid or optuna.
        space: Search space.
        defaults: Parameters of trial 0.
        seed: Seed of the search.
        trials: Number of trials, with the default trial.
        batch: Number of trials that TPE proposes at once.

    Raises:
        ConfigError: A grid has more combinations than there are trials.
    """

    def __init__(
        self, search: str, space: Space, defaults: Params, *, seed: int, trials: int, batch: int
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        name = int.from_bytes(sha256(space.method.encode()).digest()[:8], "big")
        own = int(generator(seed, "search", name).integers(2**31))
        sampler = optuna.samplers.RandomSampler(seed=own)
        if search == "optuna":
            sampler = optuna.samplers.TPESampler(
                seed=own,
                n_startup_trials=min(max(LEAST, trials // SHARE), MOST),
                n_ei_candidates=CANDIDATES,
                multivariate=True,  # parameters that all trials have are drawn together
                group=False,
                constant_liar=True,  # the trials of a batch differ
            )
        self._space, self._defaults, self._trials = space, defaults, trials
        self._batch = batch if search == "optuna" else trials
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._pruned = optuna.trial.TrialState.PRUNED
        points = grid(space, defaults, trials) if search == "grid" else []
        for point in (space.inside(defaults), *points):
            self._study.enqueue_trial(point)
        self._asked: list[Any] = []  # trials of Optuna
        self._told = 0
        self._params: list[Params] = []

    def given(self, trials: Mapping[int, Trial]) -> list[Params]:
        """Return the parameters of the trials that can begin by now, or have begun."""
        while len(self._asked) < self._trials:
            known = [trials.get(index) for index in range(len(self._asked))]
            if any(one is None or one.state == "running" for one in known):
                break
            for index in range(self._told, len(self._asked)):
                self._tell(self._asked[index], trials[index])
            self._told = len(self._asked)
            for _ in range(min(self._batch, self._trials - self._told)):
                trial = self._study.ask()
                self._asked.append(trial)
                self._params.append(self._space.suggest(trial, self._defaults))
        return self._params

    def _tell(self, asked: Any, trial: Trial) -> None:
        """Tell Optuna how a trial has ended."""
        if trial.state == "finished" and trial.score is not None:
            self._study.tell(asked, trial.score)
            return
        if trial.state == "stopped" and trial.score is not None:
            asked.report(trial.score, trial.round)
        self._study.tell(asked, state=self._pruned)


def grid(space: Space, defaults: Params, trials: int) -> list[Params]:
    """Return every combination of the grid values of a space, without the default parameters.

    Raises:
        ConfigError: There are more than the trials besides the default one.
    """
    others = (params for params in space.grid() if params != defaults)
    found = list(islice(others, trials))
    if len(found) < trials:
        return found
    sizes = ", ".join(f"{p} {len(kind.grid())}" for p, kind in space.parameters.items())
    raise ConfigError(
        f"`search=grid`: the grid of `{space.method}` ({space.source}) has more combinations than"
        f" the {trials} `trials`. Values of each: {sizes}. Raise `trials`, set a key yourself,"
        " which takes it out of the search, or use `search=random`."
    )
