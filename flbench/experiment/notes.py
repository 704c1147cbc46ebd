"""Notes on consequences of a configuration that a user might not expect."""

from typing import Final

from torch import nn

from flbench.algorithms.base import Algorithm
from flbench.config.schema import SCHEME_KEYS, Config, ModelConfig, OwnModelConfig
from flbench.core.wording import listed
from flbench.data.federation import Federation
from flbench.models import fixed
from flbench.models.base import padding_note

SHOWN: Final = 8  # layers that a note lists


def configuration_notes(
    config: Config, federation: Federation, net: nn.Module, algorithm: Algorithm
) -> list[str]:
    """Return notes, one sentence each, to show before a run starts.

    They concern adapters and random weights that are frozen, padding of images, a global model that
    is not reported, a missing validation part, natural clients that the partition scheme ignores,
    and keys without effect under the partition scheme.

    Args:
        config: Configuration of the run.
        federation: Samples of the run.
        net: The net.
        algorithm: The method.
    """
    notes = _about_frozen(config.model, net)
    is_own = isinstance(config.model, OwnModelConfig)
    if is_own or config.model.weights is not None or fixed.of(net).parameters:
        from flbench.models import own

        notes = [*own.notes(net), *notes]
    if padding := padding_note(net):
        notes.append(padding)
    drops = algorithm.setting.net.names("batchnorm") and config.train.batchnorm == "drop"
    if drops and len(federation.common):
        notes.append("with train.batchnorm=drop there is no global model: gm is not reported.")
    if not any(len(rows) for rows in federation.partition.parts["validation"]):
        notes.append("there is no validation part: the best round is taken to be the last one.")
        if config.evaluation.target_accuracy is not None:
            notes.append(
                "there is no validation part: the rounds to"
                f" evaluation.target_accuracy={config.evaluation.target_accuracy:g} are counted by"
                " the test accuracy."
            )
    if federation.dataset.groups is not None and config.partition.scheme not in ("natural", "file"):
        clients = len(set(federation.dataset.groups.tolist()) - {-1})
        notes.append(
            f"the data set has {clients} natural clients, which"
            f" partition.scheme={config.partition.scheme} ignores; partition.scheme=natural uses"
            " them as clients."
        )
    return notes + [
        f"partition.{key} has no effect with partition.scheme={config.partition.scheme}."
        for key, schemes in SCHEME_KEYS.items()
        if key in config.partition.model_fields_set
        and config.partition.scheme not in schemes
        and not (config.partition.is_own and "iid" in schemes)
        and getattr(config.partition, key) != type(config.partition).model_fields[key].default
    ]


def _about_frozen(config: ModelConfig, net: nn.Module) -> list[str]:
    """Return notes on adapters, and on frozen weights that are random."""
    notes = []
    if config.lora.rank is not None:
        from flbench.models.freezing import in_net_of_user

        adapted = [
            in_net_of_user(net, name.removesuffix(".base_layer"))
            for name, _ in net.named_modules()
            if name.endswith(".base_layer")
        ]
        have = "layers have adapters" if len(adapted) > 1 else "layer has an adapter"
        notes.append(
            f"model: {len(adapted)} {have} of rank {config.lora.rank} ({listed(adapted, SHOWN)});"
            " `model.lora.targets` chooses others."
        )
    else:
        notes += [
            f"model.lora.{key} has no effect without model.lora.rank: no layer has an adapter."
            " Set a rank, for example model.lora.rank=8."
            for key, field in type(config.lora).model_fields.items()
            if getattr(config.lora, key) != field.default
        ]
    if (key := _key_of_random_frozen(config, net)) is not None:
        notes.append(
            f"model: what `{key}` freezes has random weights, and stays so. Set `model.weights` to"
            " pretrained weights."
        )
    return notes


def _key_of_random_frozen(config: ModelConfig, net: nn.Module) -> str | None:
    """Return the key that freezes weights which are known to be random; None without such."""
    if not fixed.of(net).parameters or config.weights is not None:
        return None
    if isinstance(config, OwnModelConfig):
        # An object, and a function of the user, may have weights of their own.
        args = config.args or {}
        is_library = config.name.startswith(("torchvision.", "timm:", "timm."))
        if not is_library or args.get("weights") is not None or args.get("pretrained"):
            return None
    if config.lora.rank is not None:
        return "model.lora"
    return "model.freeze" if config.freeze != "none" else None
