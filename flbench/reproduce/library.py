"""The papers of flbench: their facts and their presets, in the folder of this file."""

from functools import cache
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from flbench.core.documents import read_yaml
from flbench.core.errors import DataError, UserError, did_you_mean
from flbench.reproduce.schema import PaperFacts

FOLDER: Final = Path(__file__).parent


def names() -> list[str]:
    """Return the names of all papers."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def load(name: str) -> PaperFacts:
    """Return the facts of a paper.

    Args:
        name: Name of the paper; case does not matter.

    Raises:
        UserError: There is no paper of this name.
        DataError: The file of the paper is damaged.
    """
    key = name.casefold()
    if key not in names():
        raise UserError(
            f"there is no paper `{name}`.{did_you_mean(key, names())} Known: {', '.join(names())}."
        )
    path = FOLDER / f"{key}.yaml"
    try:
        return PaperFacts.model_validate(read_yaml(path, required=True))
    except ValidationError as error:
        raise DataError(f"{path} is damaged ({error}). Reinstall flbench.") from error


def preset(name: str) -> Path:
    """Return the path of a paper's preset, a YAML file that `--config` reads too."""
    return FOLDER / "presets" / f"{name.casefold()}.yaml"
