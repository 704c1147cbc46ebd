"""A study from where it stands to its end."""

from flbench.tuning.plan import ENDS, Plan
from flbench.tuning.prepare import Prepared
from flbench.tuning.progress_table import Board
from flbench.tuning.run import carry_out as train
from flbench.tuning.study import StudyFolder


def is_over(folder: StudyFolder, prepared: Prepared) -> bool:
    """Return whether every training of a study has ended."""
    return Plan(prepared.samplers(), prepared.budget, folder.records()).is_over()


def carry_out(folder: StudyFolder, prepared: Prepared) -> None:
    """Train what is left of a study, on a Ray cluster that is there (`cluster.cluster`).

    Raises: KeyboardInterrupt after Ctrl-C; what has ended stays. RunError if Ray gives up.
    """
    records = list(folder.records())
    plan = Plan(prepared.samplers(), prepared.budget, records)
    board = Board(
        methods=tuple(prepared.spaces),
        metric=prepared.rules.metric,
        trials=prepared.budget.trials,
        finals=2 * prepared.budget.seeds,
        rounds=prepared.rules.rounds,
    )
    board.take_up(record for record in records if record["state"] in ENDS)
    with board.shown():
        train(
            folder.path,
            plan,
            prepared.federation,
            spaces=prepared.spaces,
            rules=prepared.rules,
            resources=prepared.resources,
            board=board,
            records=records,
        )
