"""Optuna's tree-structured Parzen estimator (TPE), asked anew for each batch of trials."""

import math
from collections.abc import Sequence
from typing import Any, Final

from flbench.core.errors import ConfigError
from flbench.core.rng import generator
from flbench.tuning.parameters import Params
from flbench.tuning.samplers import Observation, RandomSampler, number
from flbench.tuning.space import Space

LEAST, MOST, SHARE = 4, 10, 3
"""One trial of SHARE is random, but LEAST at least and MOST at most."""
CANDIDATES: Final = 24  # Optuna's default, stated because proposals depend on it


class OptunaSampler:
    """Random trials first, the same as `random`'s; then what Optuna's TPE makes of the scores.

    A study is rebuilt from the history for each batch, with a seed from (seed, method, first
    index). A stopped trial counts below all finished ones, and the more the further it came. One
    that diverged, failed or was never evaluated counts least, so that its parameters are avoided.
    A default outside the ranges (`null`, say) is told without that parameter.

    Raises: ConfigError if Optuna is not installed.
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
            self.random.trial(index) if index < self.startup else self._asked(study.ask())
            for index in indices
        ]

    def _study(self, history: Sequence[Observation]) -> Any:
        """Return a study that was told the history."""
        stream = generator(self.seed, "search", number(self.space.method), len(history))
        tpe = self.optuna.samplers.TPESampler(
            seed=int(stream.integers(2**31)),
            n_startup_trials=1,  # random trials are ours: all that Optuna draws is modelled
            n_ei_candidates=CANDIDATES,
        )
        study = self.optuna.create_study(direction="maximize", sampler=tpe)
        study.add_trials([self._told(observation) for observation in history])
        return study

    def _told(self, observation: Observation) -> Any:
        """Return a trial as one of Optuna's."""
        params: Params = {}
        for path, value in observation.params.items():
            parameter = self.space.parameters.get(path)
            if parameter is not None and parameter.holds(value):
                params[path] = parameter.told(value)
        fixed = self.optuna.trial.FixedTrial(params)
        for path in params:
            self.space.parameters[path].suggest(fixed, path)
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

    def _asked(self, trial: Any) -> Params:
        """Return what Optuna proposes; active parameters alone are asked for."""
        return self.space.assign(lambda path, parameter: parameter.suggest(trial, path))


def _optuna() -> Any:
    """Return the package.

    Raises: ConfigError with the line that installs it.
    """
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            "--search optuna needs the package `optuna`, which is not installed:"
            " pip install 'flbench[tune]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would announce every study
    return optuna
