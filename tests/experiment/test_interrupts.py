"""Signals that arrive where Python ignores what is raised."""

import os
import signal

import pytest

from flbench.experiment.interrupts import Interrupts


class Deleted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(10))  # Python calls the handler between two instructions


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_within_a_destructor_is_not_lost():
    """The garbage collector calls destructors of other libraries in the middle of a training."""
    with Interrupts() as interrupts:
        with interrupts.allowed():
            thing = Deleted()
            del thing
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        interrupts.check()
