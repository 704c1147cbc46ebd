"""Optuna's tree-structured Parzen estimator (TPE), asked anew for each batch of trials."""

import math
from collections.abc import Sequence
from typing import Any, Final

from flbench.core.errors import ConfigError
from flbench.core.rng import generator
from flbench.tuning.parameters import Choice, Fixed, Parameter, Params, Scalar
from flbench.tuning.ranges import Int, LogUniform, QUniform, Uniform
from flbench.tuning.samplers import Observation, RandomSampler, number
from flbench.tuning.space import Space

LEAST, MOST, SHARE = 4, 10, 3
"""One trial of SHARE is random, but LEAST at least and MOST at most."""
CANDIDATES: Final = 24  # Optuna's default, stated because proposals depend on it


class OptunaSampler:
    """Random trials first, the same as `random`'s; then what Optuna's TPE makes of the scores.

    A study is rebuilt from the history for each batch, with a seed from (seed, method, first
    index). A stopped trial counts below all finished ones, and the more the further it came. One
    that diverged, failed or was never evaluated counts least: its parameters are to be kept away from.
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
            self.random.trial(index) if index < self.startup else self._suggested(study.ask())
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
        distributions: dict[str, Any] = {}
        for path, value in observation.params.items():
            parameter = self.space.parameters.get(path)
            if parameter is None or isinstance(parameter, Fixed) or not parameter.holds(value):
                continue
            if isinstance(parameter, QUniform) and isinstance(value, int | float):
                value = parameter.index(value)
            params[path] = value
            distributions[path] = self._distribution(parameter)
        score = observation.score
        evaluated = score is not None and math.isfinite(score)
        if evaluated and observation.state == "finished":
            return self.optuna.create_trial(params=params, distributions=distributions, value=score)
        came = evaluated and observation.state == "stopped"
        return self.optuna.create_trial(
            state=self.optuna.trial.TrialState.PRUNED,
            params=params,
            distributions=distributions,
            intermediate_values={observation.round: score} if came else {},
        )

    def _distribution(self, parameter: Parameter) -> Any:
        """Return what Optuna draws for a parameter that is not fixed."""
        kinds = self.optuna.distributions
        match parameter:
            case LogUniform(limits=(low, high)):
                return kinds.FloatDistribution(low, high, log=True)
            case Uniform(limits=(low, high)):
                return kinds.FloatDistribution(low, high)
            case QUniform(steps=steps):  # the number of steps: Optuna's own steps are inexact
                return kinds.IntDistribution(0, steps)
            case Int(ends=(low, high), log=log):
                return kinds.IntDistribution(low, high, log=log)
            case Choice(values=values):
                return kinds.CategoricalDistribution(values)
        raise TypeError(f"no distribution of Optuna for {parameter.kind}")

    def _suggested(self, trial: Any) -> Params:
        """Return what Optuna proposes; active parameters alone are asked for."""

        def pick(path: str, parameter: Parameter) -> Scalar:
            drawn: Scalar
            match parameter:
                case Uniform(limits=(low, high)):
                    log = isinstance(parameter, LogUniform)
                    return parameter.nearest(trial.suggest_float(path, low, high, log=log))
                case QUniform(steps=steps):
                    return parameter.value(trial.suggest_int(path, 0, steps))
                case Int(ends=(low, high), log=log):
                    drawn = trial.suggest_int(path, low, high, log=log)
                    return drawn
                case Choice(values=values):
                    drawn = trial.suggest_categorical(path, values)
                    return drawn
            return parameter.at(0.5)  # fixed

        return self.space.assign(pick)


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
