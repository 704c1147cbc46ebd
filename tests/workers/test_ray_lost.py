"""Why a process of Ray was lost, in one sentence for each kind of loss."""

from types import SimpleNamespace

import pytest

ray = pytest.importorskip("ray")
callbacks = pytest.importorskip("flbench.tuning.callbacks")
lost = pytest.importorskip("flbench.workers.ray_lost")

MONITOR = "1 worker(s) were killed due to the node running low on memory.\nObject store: 7 lines"
INIT = "The actor died because of an error raised in its creation task\nNo module named 'x'"


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (ray.exceptions.OutOfMemoryError(MONITOR), "memory of the machine was almost full"),
        (ray.exceptions.ActorDiedError(), "was killed, or memory ran out"),
        (ray.exceptions.RayActorError(error_msg="x because its node has died."), "machine"),
        (ray.exceptions.ActorUnavailableError("The node is unreachable", None), "machine"),
        (ray.exceptions.RayActorError(error_msg=INIT, actor_init_failed=True), "named 'x'. Wo"),
    ],
)
def test_every_loss_is_one_sentence_with_its_cause(error, word):
    assert isinstance(error, lost.LOST)
    assert word in lost.why_lost(error)
    assert "\n" not in lost.why_lost(error)


def test_only_an_error_of_a_beginning_would_come_again():
    again = ray.exceptions.RayActorError(error_msg=INIT, actor_init_failed=True)

    assert lost.could_not_begin(again)
    assert "$PYTHONPATH" in lost.why_lost(again)
    assert not lost.could_not_begin(ray.exceptions.ActorDiedError())
    assert not lost.could_not_begin(ray.exceptions.OutOfMemoryError(MONITOR))


def test_reason_of_which_ray_tune_has_the_text_alone(tmp_path):
    """The memory monitor ends a worker that begins: no error is pickled."""
    file = tmp_path / "error.txt"
    file.write_text(f"Failure # 1 (occurred at x)\nold\nFailure # 2 (occurred at y)\n{MONITOR}\n")
    trial = SimpleNamespace(pickled_error_file=None, error_file=str(file))

    assert callbacks._reason(trial) == lost.why_lost(ray.exceptions.OutOfMemoryError(MONITOR))
    assert "no reason" in callbacks._reason(
        SimpleNamespace(pickled_error_file=None, error_file=None)
    )
