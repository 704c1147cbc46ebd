"""What a user may not expect of a configuration, said before the run starts."""

from typing import Final

from torch import nn

from flbench.algorithms.base import Algorithm
from flbench.config.schema import Config
from flbench.data.federation import Federation
from flbench.models.base import padding_note

DEALT: Final = ("iid", "dirichlet", "pathological", "grouped", "quantity")
SCHEME_KEYS: Final = {
    "alpha": ("dirichlet", "quantity"),
    "balanced": ("dirichlet",),
    "classes_per_client": ("pathological",),
    "main_classes": ("grouped",),
    "main_share": ("grouped",),
    "samples_per_client": ("grouped",),
    "path": ("file",),
    "split": (*DEALT, "natural"),
    "pool": (*DEALT, "natural"),
    "samples": (*DEALT, "natural"),
    "min_samples": DEALT,
}


def configuration_notes(
    config: Config, federation: Federation, net: nn.Module, algorithm: Algorithm
) -> list[str]:
    """Return what a user may not expect of this configuration."""
    said = [note] if (note := padding_note(net)) else []
    if algorithm.setting.net.names("batchnorm"):
        policy = {
            "average": "averaged over clients where the layer's weights are",
            "local": "kept by each client",
            "drop": "dropped after training and estimated anew on the client's training part when"
            " evaluated",
        }[config.train.batchnorm]
        said.append(
            f"BatchNorm statistics are {policy} (train.batchnorm={config.train.batchnorm})."
        )
        if config.train.batchnorm == "drop" and len(federation.common):
            said.append("train.batchnorm=drop leaves no model that all share: gm is not reported.")
    if not any(len(rows) for rows in federation.partition.parts["validation"]):
        said.append("there is no validation part: the best round is the last one.")
    if federation.dataset.groups is not None and config.partition.scheme not in ("natural", "file"):
        clients = len(set(federation.dataset.groups.tolist()) - {-1})
        said.append(
            f"the data name {clients} natural clients, which"
            f" partition.scheme={config.partition.scheme} mixes;"
            " partition.scheme=natural keeps them."
        )
    return said + [
        f"partition.{key} has no effect with partition.scheme={config.partition.scheme}."
        for key, schemes in SCHEME_KEYS.items()
        if key in config.partition.model_fields_set
        and config.partition.scheme not in schemes
        and getattr(config.partition, key) != type(config.partition).model_fields[key].default
    ]
