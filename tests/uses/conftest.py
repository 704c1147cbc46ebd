import pytest


@pytest.fixture(autouse=True, scope="module")
def _patient():
    """Wait for the mirrors to MLflow as long as a busy machine needs; tests read what they sent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flbench.tracking.mirror.EXIT_SECONDS", 120.0)
        yield
