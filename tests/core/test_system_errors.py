"""Errors of the system and of memory as errors of flbench."""

import errno

import pytest

from flbench.core.errors import RunError, UserError
from flbench.core.system_errors import as_flbench_errors


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/runs/a"),
            RunError,
            "/runs/a: No space",
        ),
        (MemoryError(), RunError, "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), RunError, "out of memory"),
        (PermissionError(errno.EACCES, "Permission denied", "/runs/a"), UserError, "/runs/a: Perm"),
    ],
)
def test_what_disk_and_memory_end_can_be_resumed(error, kind, words):
    with pytest.raises(kind, match=words) as found, as_flbench_errors("flbench run --resume a"):
        raise error

    is_resumed = kind is RunError
    assert str(found.value).endswith("Resume with: flbench run --resume a") == is_resumed
    with pytest.raises(kind) as found, as_flbench_errors(), as_flbench_errors("x"):
        raise error
    assert str(found.value).count("Resume with: ") == is_resumed


def test_other_errors_pass_unchanged():
    with pytest.raises(RuntimeError, match=r"^shapes$"), as_flbench_errors("x"):
        raise RuntimeError("shapes")
