"""The second half of a study: its methods with default and with the best parameters, compared."""

from collections.abc import Mapping
from typing import Any, Final

from flbench.comparison.design import Design, LabelledLayer
from flbench.config.sources import Layer, from_values, merge
from flbench.core.parts import OBJECT
from flbench.jobs.repetitions import Vary, seeds_of
from flbench.results.study_folder import StoredStudy

ORIGIN: Final = "flbench tune"

Params = Mapping[str, Mapping[str, Any]]
"""Parameters by dotted key, by the label of a method."""


def winners_of(study: StoredStudy) -> dict[str, Params]:
    """Return the default and the best parameters of each method of a study that has ended.

    `METHOD` has the default parameters, and `METHOD tuned` those of the best trial, unless that is
    the default one. A method without a best trial is left out.
    """
    found: dict[str, Params] = {}
    for method in study.methods:
        if (won := study.winner(method)) is not None:
            best = {f"{method} tuned": won.params} if won.index else {}
            found[method] = {**best, method: study.header.methods[method].defaults}
    return found


def design_of(
    layers: Mapping[str, Layer], params: Mapping[str, Params], seeds: int, vary: Vary
) -> Design | None:
    """Return the comparison of methods after a search of their parameters.

    Its seeds, and its partitions unless `vary` is `training`, are those after the seed and the
    partition of the search, which have chosen the parameters.

    Returns:
        The design; None if nothing is to be trained.
    """
    if not params or not seeds:
        return None
    first, *others = layers.values()
    training, partition = seeds_of(vary, first["seed"].value, first["partition.seed"].value, 1)
    new = from_values({"seed": training, "partition.seed": partition}, ORIGIN)
    # The hash of a scheme that is an object is that of the partition that it made for the search.
    left_out = {*new, *(["partition.sha256"] if first["partition.scheme"].value == OBJECT else [])}
    shared = {
        key
        for key, one in first.items()
        if not key.startswith("algorithm.")
        and all(key in other and other[key].value == one.value for other in others)
    }
    methods = []
    for method, labels in params.items():
        own = layers[method].where(lambda key: key not in shared | left_out)
        for label, values in labels.items():
            origins = dict.fromkeys(values, f"{ORIGIN}, {label}")
            layer = merge([own, Layer(values, origins)])
            methods.append(LabelledLayer.of(label, layer, own=True))
    base = merge([first.where((shared - left_out).__contains__), new])
    return Design(base=base, methods=tuple(methods), seeds=seeds, vary=vary)
