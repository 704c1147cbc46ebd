"""Partitions: the schemes as functions, and a partition to look at before a run."""

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

import numpy as np
from numpy.typing import NDArray

from flbench.api.settings import AnyPath, Keys, Reading, given, verb
from flbench.calls import arguments, parts
from flbench.config.resolve import resolve
from flbench.config.schema import DEALT, SCHEME_KEYS, Config, PartitionConfig
from flbench.config.trust import run_code
from flbench.core.documents import as_data_error, read_json
from flbench.core.errors import ConfigError, DataError, UserError, did_you_mean
from flbench.core.parts import offered
from flbench.data import catalogue, partition_files
from flbench.data.dataset import PARTS
from flbench.data.npz_files import read_arrays
from flbench.experiment import assembly

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from flbench.data.federation import Federation


COMMON: Final = tuple(
    key
    for key in PartitionConfig.model_fields
    if key not in ("scheme", "args", "sha256")
    and (key not in SCHEME_KEYS or {*DEALT} <= {*SCHEME_KEYS[key]})
)
"""Keys of the section `partition` that all schemes have."""
SCHEMES: Final[dict[str, Callable[..., dict[str, Any]]]] = {}
"""The functions that make a section, by the name of their scheme."""


def _scheme(title: str, name: str) -> Callable[..., dict[str, Any]]:
    """Return the function that makes the section `partition` of a scheme of its keys.

    Values are checked when a run or a partition is made. A key that the scheme does not have, which
    a configuration would ignore, is a ConfigError.
    """
    own = [key for key, schemes in SCHEME_KEYS.items() if name in schemes and key not in COMMON]
    known = [*own, *COMMON]

    def section(**keys: Any) -> dict[str, Any]:
        if wrong := [key for key in keys if key not in known]:
            hint = did_you_mean(wrong[0], known) or f" Keys there: {', '.join(known)}."
            raise ConfigError(f"`{wrong[0]}` is not a key of fl.{title}.{hint}")
        return {"scheme": name} | {key: one for key, one in keys.items() if one is not None}

    fields = PartitionConfig.model_fields
    about = [f"    {key}: {fields[key].description}." for key in known]
    section.__name__ = section.__qualname__ = title
    section.__doc__ = "\n".join([f"Section `partition` of the scheme `{name}`.\n", "Args:", *about])
    parameters = [Parameter(key, Parameter.KEYWORD_ONLY, default=None) for key in known]
    vars(section)["__signature__"] = Signature(parameters)
    SCHEMES[name] = section
    return section


IID = _scheme("IID", "iid")
"""Samples at random, in equal shares (`partition.scheme=iid`)."""
Dirichlet = _scheme("Dirichlet", "dirichlet")
"""Every class in shares drawn from a Dirichlet distribution: `alpha`, above 0, of which a smaller
one gives more skew, and `balanced`, for clients of one size (`partition.scheme=dirichlet`)."""
Pathological = _scheme("Pathological", "pathological")
"""A few classes for each client: `classes_per_client` (`partition.scheme=pathological`)."""
Grouped = _scheme("Grouped", "grouped")
"""Groups of clients with main classes: `main_classes`, the number of them in each group,
`main_share` and `samples_per_client` (`partition.scheme=grouped`)."""
Quantity = _scheme("Quantity", "quantity")
"""Clients of different sizes, with samples at random: `alpha` (`partition.scheme=quantity`)."""
Shards = _scheme("Shards", "shards")
"""`shards` pieces for each client of the samples sorted by class (`partition.scheme=shards`)."""
ExtendedDirichlet = _scheme("ExtendedDirichlet", "extended_dirichlet")
"""A few classes for each client, in shares drawn from a Dirichlet distribution:
`classes_per_client` and `alpha` (`partition.scheme=extended_dirichlet`)."""
Similarity = _scheme("Similarity", "similarity")
"""A share `similarity` of a client's samples at random, the others sorted by class
(`partition.scheme=similarity`)."""
ByTarget = _scheme("ByTarget", "target")
"""`bins` intervals of a target that is a number, in Dirichlet shares with `alpha`
(`partition.scheme=target`)."""
Natural = _scheme("Natural", "natural")
"""The clients that the data set itself has (`partition.scheme=natural`)."""
FromFile = _scheme("FromFile", "file")
"""A saved partition: `path`, the file NAME.npz, with NAME.json beside it
(`partition.scheme=file`)."""


class Partition:
    """The samples of every client.

    `fl.partition` makes one to look at before a run, and `Run.partition` is the one of a run. A
    partition that `fl.partition` made can be given to `fl.run` as `partition`.

    Attributes:
        dataset: Name of the data set.
        hash: SHA-256 (hex); partitions with equal hashes give every client the same samples.
        classes: Names of the C classes.
        names: Names of the N clients if they are natural ones with names; otherwise empty.
        shifts: How the samples of each of the N clients are shifted; empty if none are.
        notes: Sentences for the user.
        config: Section `partition` of the configuration.
    """

    def __init__(
        self,
        description: Mapping[str, Any],
        train_counts: NDArray[np.integer[Any]],
        config: Mapping[str, Any],
    ) -> None:
        self.dataset = str(description["dataset"])
        self.hash = str(description["hash"])
        self.classes = tuple(map(str, description["classes"]))
        self.names = tuple(map(str, description.get("client_names") or ()))
        self.shifts = tuple(map(str, description.get("shifts") or ()))
        self.notes = tuple(map(str, description.get("notes") or ()))
        self.config = dict(config)
        self._samples = {part: list(description["samples"][part]) for part in PARTS}
        self._counts = np.asarray(train_counts, dtype=np.int64)  # [N, C]
        if self._counts.shape != (len(self._samples["train"]), len(self.classes)):
            raise ValueError("`train_counts` has another shape than [clients, classes]")

    @classmethod
    def of(cls, federation: "Federation", config: Mapping[str, Any]) -> "Partition":
        """Return the partition of loaded samples."""
        return cls(catalogue.partition(federation), federation.counts.numpy(), config)

    @classmethod
    def read(cls, path: Path) -> "Partition":
        """Read a saved partition; the data set is not needed.

        Args:
            path: The file NAME.npz, with NAME.json beside it.

        Raises:
            DataError: A file is missing or damaged.
        """
        beside = path.with_suffix(".json")
        if not (path.is_file() and beside.is_file()):
            raise DataError(f"{path} and {beside.name} do not both exist. Start the run again.")
        description, arrays = read_json(beside), read_arrays(path)
        with as_data_error(beside):
            return cls(description, arrays["train_counts"], description["config"])

    @property
    def clients(self) -> int:
        """Number of clients N."""
        return len(self._counts)

    @property
    def counts(self) -> "pd.DataFrame":
        """Training samples by client (rows, the index `client`) and class name (columns), int64."""
        import pandas as pd

        index = pd.RangeIndex(self.clients, name="client")
        return pd.DataFrame(self._counts, index=index, columns=pd.Index(self.classes, name="class"))

    @property
    def sizes(self) -> "pd.DataFrame":
        """Samples of each client by part.

        Columns: `client` int64, `name` str (natural clients with names only), `shift` str (if
        samples are shifted), `train`, `validation`, `test` int64, and `classes` int64, the classes
        that it trains on.
        """
        import pandas as pd

        names = {"name": list(self.names)} if self.names else {}
        names |= {"shift": list(self.shifts)} if self.shifts else {}
        return pd.DataFrame(
            {"client": np.arange(self.clients), **names}
            | {part: np.asarray(self._samples[part], dtype=np.int64) for part in PARTS}
            | {"classes": (self._counts > 0).sum(axis=1)}
        )

    def section(self) -> dict[str, Any]:
        """Return the keys of the section `partition`, so that a run can be given this object."""
        return {key: value for key, value in self.config.items() if value is not None}

    def plot(self) -> "Figure":
        """Draw the training samples by client and class, in log scale."""
        from flbench.reports import data_figures

        return data_figures.partition_table(
            self._counts, self.classes, self.dataset, self.names, self.shifts
        )

    @property
    def _has_classes(self) -> bool:
        """Whether there is more than one class; targets that are no classes count as one."""
        return len(self.classes) > 1

    def __repr__(self) -> str:
        sizes = self._counts.sum(axis=1)
        classes = f" {len(self.classes)} classes," if self._has_classes else ""
        return (
            f"<Partition of {self.dataset}: {self.clients} clients,{classes}"
            f" {sizes.min()} to {sizes.max()} training samples>"
        )


class PartitionSettings(Reading, total=False):
    """The settings of `fl.partition`."""

    shift: Keys | None


@verb
def partition(
    data: Any = None,
    partition: Any = None,
    *,
    out: AnyPath | None = None,
    **settings: Unpack[PartitionSettings],
) -> Partition:
    """Distribute the samples of a data set to clients, without a run.

    Args:
        data: Section `data`, as for `fl.run`.
        partition: Section `partition`, as for `fl.run`.
        out: File NAME.npz for the partition, which `fl.FromFile` reads again; None to write none.
        settings: See `PartitionSettings`. The partition has its own seed if its section has one.

    Returns:
        The partition.

    Raises:
        UserError: A key is wrong, the data set cannot be read, or the partition cannot be made.

    >>> partition("digits", {"alpha": 0.5, "clients": 4}).clients
    4
    """
    values, keys = given("partition", data=data, partition=partition, out=out, **settings)
    plain, objects = parts.split(arguments.sections(values, keys))
    with run_code(values["trust"]):
        found, _ = resolve(arguments.layers("partition", values["config"], plain))
    found = found.altered(partition=found.partition.altered(seed=found.partition_seed))
    with offered(objects):
        federation = make(found, None if out is None else arguments.path_of(out, "out"))
    return Partition.of(federation, found.partition.model_dump(mode="json"))


def make(config: Config, out: Path | None = None) -> "Federation":
    """Load a data set, distribute its samples to clients, and save the partition in `out`.

    Raises:
        UserError: The data set cannot be read, or the partition cannot be made or saved.
    """
    if out is not None and out.suffix != ".npz":
        raise UserError(f"`out` must be a file that ends with .npz, got {out}.")
    federation = assembly.load_federation(config)
    if out is not None:
        partition_files.save(federation.partition, federation.dataset, config.partition, out)
    return federation
