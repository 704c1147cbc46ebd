"""The workers of a driver that was killed: they write to its folders until Ray has ended them."""

import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

LIMIT: Final = 30.0  # seconds to wait for them; Ray ends them within a few
PATIENCE: Final = 2.0  # seconds after which the user is told
INTERVAL: Final = 0.1  # seconds between two looks

Place = TypeVar("Place")


def wait_for_orphans(
    places: Iterable[Place], is_busy: Callable[[Place], bool], tell: Callable[[str], None]
) -> None:
    """Wait until no worker of a killed driver writes to any of these places, for at most `LIMIT`.

    A place that is still busy after that is left to the training there, which fails and names it.

    Args:
        places: What workers of the driver may write to, such as run folders.
        is_busy: Function that returns whether a worker is still there.
        tell: Function that is told of a wait of more than `PATIENCE`.
    """
    begin = time.monotonic()
    is_told = False
    for place in places:
        while is_busy(place) and (waited := time.monotonic() - begin) < LIMIT:
            if waited > PATIENCE and not is_told:
                tell(
                    f"waiting for at most {LIMIT - waited:.0f} s until the processes of an earlier"
                    " call, which was killed, have ended."
                )
                is_told = True
            time.sleep(INTERVAL)
