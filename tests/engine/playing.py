"""Rounds that tests of engines play."""

from flbench.experiment import rounds


def played(built, engine, number: int = 3):
    """Return the state after some rounds of an experiment with an engine, without evaluations."""
    state = built.start()
    while state.round < number:
        setup = built.algorithm.stages()[state.stage].setup
        settings = rounds.settings_of(built.algorithm, state, setup=setup)
        with rounds.seeded_method(built.algorithm, settings.draw):
            trained = rounds.train(built.algorithm, engine, state, settings)
            state = rounds.exchange(built.algorithm, state, trained).state
    return state
