"""With which versions of flbench and PyTorch the runs of an archive were trained."""

import json
import tarfile
from collections import Counter
from pathlib import Path


def trained_with(archive: Path) -> str:
    """Return a sentence about the versions of an archive's runs; none if all have the same ones.

    Args:
        archive: The runs, as `flbench pack` wrote them.
    """
    found: Counter[str] = Counter()
    with tarfile.open(archive) as runs:
        for member in runs:
            if member.name.endswith("/provenance.json") and (file := runs.extractfile(member)):
                about = json.load(file)
                revision = about.get("git_revision")
                flbench = f"revision {revision[:8]}" if revision else "a copy without a revision"
                changes = " with changes" if str(revision).endswith("-dirty") else ""
                found[f"{flbench}{changes} and PyTorch {about['packages']['torch']}"] += 1
    if len(found) < 2:
        return ""
    parts = [f"{count} runs with {versions}" for versions, count in found.most_common()]
    return (
        f"The runs were not all trained with the same code: {'; '.join(parts)}. Equal"
        " configurations may differ by rounding, and seconds may be those of different machines."
    )
