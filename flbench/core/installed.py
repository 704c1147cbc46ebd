"""Which files belong to Python and to installed packages, and which are the user's own.

A package that is installed as editable lies in a folder of the user, and is the user's own.
"""

import site
import sysconfig
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

NAMES: Final = frozenset({"site-packages", "dist-packages"})
"""Names of the folders that installers write packages to."""


@lru_cache(maxsize=4096)
def is_installed(path: Path | str) -> bool:
    """Return whether a file or folder is within one of Python's folders for modules and packages.

    These are the folders of this Python, and any folder `site-packages` or `dist-packages`, which
    may be that of another environment.

    Args:
        path: The file or folder.

    >>> is_installed(site.__file__)
    True
    >>> is_installed("<string>")
    False
    """
    place = Path(path)
    if not place.is_absolute():
        return False
    return any(
        not NAMES.isdisjoint(one.parts) or any(one.is_relative_to(folder) for folder in _folders())
        for one in (place, place.resolve())
    )


@cache
def _folders() -> tuple[Path, ...]:
    """Return the folders of this Python, with and without symbolic links."""
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple({one for path in paths for one in (Path(path), Path(path).resolve())})
