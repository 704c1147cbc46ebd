"""Optuna's tree-structured Parzen estimator (TPE), rebuilt for each batch of trials."""

import math
from collections.abc import Sequence
from typing import Any, Final

from flbench.core.errors import ConfigError
from flbench.core.rng import generator
from flbench.tuning.samplers import Observation, RandomSampler, number
from flbench.tuning.search_space import Params, Space

LEAST, MOST, SHARE = 4, 10, 3
"""One trial in SHARE is random, with at least LEAST and at most MOST random trials."""
CANDIDATES: Final = 24
"""Optuna's default. It is given to Optuna, as all that proposals depend on."""


class OptunaSampler:
    """Proposes random trials first, the same as `RandomSampler`, then trials of Optuna's TPE.

    For each batch, an Optuna study is built from the history, with a seed derived from the seed,
    the method's name and the index of the batch's first trial. A stopped trial ranks below all
    finished ones, and higher the more rounds it has done. A trial that diverged, failed or was
    never evaluated ranks lowest, so that its parameters are avoided. If a default lies outside its
    range (such as `null`), the default trial is passed to Optuna without this parameter.

    Args:
        space: Search space of the method.
        defaults: Parameters of trial 0.
        seed: Seed of the search.
        trials: Number of trials, with the default trial.

    Raises:
        ConfigError: Optuna is not installed.
    """

    def __init__(self, space: Space, defaults: Params, seed: int, trials: int) -> None:
        self.optuna = _optuna()
        self.space = space
        self.seed = seed
        self.random = RandomSampler(space, defaults, seed)
        self.startup = min(max(LEAST, trials // SHARE), MOST)

    def batch(self, concurrent: int) -> int | None:
        return concurrent

    def propose(self, history: Sequence[Observation], count: int) -> list[Params]:
        first = len(history)
        indices = range(first, first + count)
        if not history or indices.stop <= self.startup:
            return [self.random.trial(index) for index in indices]
        study = self._study(history)
        return [
            self.random.trial(index) if index < self.startup else self._params_of(study.ask())
            for index in indices
        ]

    def _study(self, history: Sequence[Observation]) -> Any:
        """Return an Optuna study with the trials of the history."""
        stream = generator(self.seed, "search", number(self.space.method), len(history))
        tpe = self.optuna.samplers.TPESampler(
            seed=int(stream.integers(2**31)),
            n_startup_trials=1,  # RandomSampler draws the random trials, Optuna only modelled ones
            n_ei_candidates=CANDIDATES,
            multivariate=True,  # parameters that all trials have are drawn together
            group=False,
            constant_liar=True,  # the trials of a batch differ
        )
        study = self.optuna.create_study(direction="maximize", sampler=tpe)
        study.add_trials([self._to_optuna(observation) for observation in history])
        return study

    def _to_optuna(self, observation: Observation) -> Any:
        """Return the result of a trial as a trial of Optuna."""
        params = self.space.inside(observation.params)
        fixed = self.optuna.trial.FixedTrial(params)
        for path in params:
            self.space.parameters[path].suggest(fixed)
        known = {"params": fixed.params, "distributions": fixed.distributions}
        score = observation.score
        evaluated = score is not None and math.isfinite(score)
        if evaluated and observation.state == "finished":
            return self.optuna.create_trial(**known, value=score)
        came = evaluated and observation.state == "stopped"
        return self.optuna.create_trial(
            **known,
            state=self.optuna.trial.TrialState.PRUNED,
            intermediate_values={observation.round: score} if came else {},
        )

    def _params_of(self, trial: Any) -> Params:
        """Return the parameters that Optuna proposes; only active parameters are drawn."""
        return self.space.suggest(trial)


def _optuna() -> Any:
    """Import Optuna.

    Raises:
        ConfigError: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            "`search=optuna` needs the package `optuna`, which is not installed:"
            " pip install 'flbench[tune]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would announce every study
    return optuna
