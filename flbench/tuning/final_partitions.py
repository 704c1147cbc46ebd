"""The partitions of a study's final trainings, each of which has one of its own.

The search has chosen the parameters on one partition. What the final trainings show on others does
not depend on this choice, and holds for new partitions of the samples.
"""

from collections.abc import Mapping

from flbench.config.schema import Config, PartitionConfig
from flbench.core import parts
from flbench.core.errors import ConfigError, UserError
from flbench.data import federation as federations
from flbench.data import own_schemes, partition_files
from flbench.data.federation import Federation
from flbench.jobs.repetitions import Vary, seeds_of
from flbench.tuning.study import StudyFolder, partition_folder

Partitions = Mapping[int, Federation]
"""Samples of the clients by the seed of the partition."""


def make(config: Config, federation: Federation, vary: Vary, count: int) -> Partitions:
    """Make the partitions of the final trainings.

    Args:
        config: Configuration of the trials. Data and partition are the same for all methods.
        federation: Partitioned data set of the search.
        vary: What differs between final trainings.
        count: Number of final trainings with the same parameters.

    Returns:
        The partitions. None if all trainings share that of the search: because they are asked to,
        or because the scheme makes the same partition for every seed.

    Raises:
        UserError: A partition cannot be made from the samples.
    """
    found: dict[int, Federation] = {}
    if vary == "training":
        return found
    for number in range(1, count + 1):
        _, seed = seeds_of(vary, config.seed, config.partition_seed, number)
        try:
            made = federations.build(
                federation.dataset,
                config.data,
                _section(config, seed),
                config.seed,
                config.shift,
            )
        except UserError as error:
            raise ConfigError(f"partition.seed={seed} of final trainings: {error}") from error
        if made.partition.hash() == federation.partition.hash():
            return {}
        found[seed] = made
    return found


def write(folder: StudyFolder, config: Config, partitions: Partitions) -> None:
    """Write each partition into its folder, from which final trainings copy it.

    Args:
        folder: The study folder.
        config: Configuration of the trials.
        partitions: The partitions.

    Raises:
        RunError: The disk is full or failed.
    """
    for seed, made in partitions.items():
        section = _section(config, seed)
        section = section.altered(
            clients=made.clients, sha256=own_schemes.sha256(section, made.partition.hash())
        )
        packed, description = partition_files.encode(made.partition, made.dataset, section)
        name = partition_folder(folder.path, seed).relative_to(folder.path).as_posix()
        (folder.path / name).mkdir(parents=True, exist_ok=True)
        folder.write(f"{name}/partition.npz", packed)
        folder.write(f"{name}/partition.json", description)


def check_unchanged(folder: StudyFolder, partitions: Partitions, cure: str) -> None:
    """Check that the partitions are those that a study has begun with.

    Args:
        folder: The study folder.
        partitions: The partitions, made again.
        cure: What the user can do; the last sentence of the error.

    Raises:
        DataError: They differ, or a file is damaged or missing.
    """
    for seed, made in partitions.items():
        path = partition_folder(folder.path, seed)
        partition_files.check_unchanged(path, made.partition, made.dataset, cure)


def _section(config: Config, seed: int) -> PartitionConfig:
    """Return the section `partition` of final trainings with a seed of the partition.

    The hash of a scheme that is an object is that of the partition that it made for the search.
    """
    section = config.partition.altered(seed=seed)
    return section.altered(sha256=None) if section.scheme == parts.OBJECT else section
