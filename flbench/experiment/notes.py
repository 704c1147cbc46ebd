"""Notes on consequences of a configuration that a user might not expect."""

from torch import nn

from flbench.algorithms.base import Algorithm
from flbench.config.schema import SCHEME_KEYS, Config, ModelConfig, OwnModelConfig, PartitionConfig
from flbench.data.federation import Federation
from flbench.models import freezing


def configuration_notes(
    config: Config, federation: Federation, net: nn.Module, algorithm: Algorithm
) -> list[str]:
    """Return notes, one sentence each, to show before a run starts."""
    notes = []
    has_frozen = bool(freezing.of(net).parameters)
    if isinstance(config.model, OwnModelConfig) or config.model.weights is not None or has_frozen:
        from flbench.models import own

        notes += own.notes(net)
    notes += _about_lora(config.model)
    if has_frozen and _is_random(config.model):
        key = "model.freeze" if config.model.lora.rank is None else "model.lora"
        notes.append(
            f"model: what `{key}` freezes has random weights, and stays so. Set `model.weights` to"
            " pretrained weights."
        )
    drops = algorithm.setting.net.names("batchnorm") and config.train.batchnorm == "drop"
    if drops and len(federation.common):
        notes.append("with train.batchnorm=drop there is no global model: gm is not reported.")
    if not any(map(len, federation.partition.parts["validation"])):
        counted = (
            ""
            if config.evaluation.target_accuracy is None
            else (", and the rounds to evaluation.target_accuracy are counted by the test accuracy")
        )
        notes.append(
            f"there is no validation part: the best round is taken to be the last one{counted}."
        )
    return notes + _about_partition(config.partition, federation)


def _about_partition(config: PartitionConfig, federation: Federation) -> list[str]:
    """Return notes on natural clients that are ignored, and on keys without effect."""
    scheme, groups, notes = config.scheme, federation.dataset.groups, []
    if groups is not None and scheme not in ("natural", "file"):
        clients = len(set(groups.tolist()) - {-1})
        notes.append(
            f"the data set has {clients} natural clients, which partition.scheme={scheme} ignores;"
            " partition.scheme=natural uses them as clients."
        )
    return notes + [
        f"partition.{key} has no effect with partition.scheme={scheme}."
        for key, schemes in SCHEME_KEYS.items()
        if key in config.model_fields_set
        and scheme not in schemes
        and not (config.is_own and "iid" in schemes)
        and getattr(config, key) != type(config).model_fields[key].default
    ]


def _about_lora(config: ModelConfig) -> list[str]:
    """Return notes on keys of `model.lora` that have no effect without a rank."""
    return [
        f"model.lora.{key} has no effect without model.lora.rank, for example 8."
        for key, field in type(config.lora).model_fields.items()
        if config.lora.rank is None and getattr(config.lora, key) != field.default
    ]


def _is_random(config: ModelConfig) -> bool:
    """Return whether weights are known to be random; the user's nets may have weights of theirs."""
    if not isinstance(config, OwnModelConfig):
        return config.weights is None
    args = config.args or {}
    has_own = config.weights is not None or args.get("weights") is not None
    is_library = config.name.startswith(("torchvision.", "timm:", "timm."))
    return is_library and not has_own and not args.get("pretrained")
