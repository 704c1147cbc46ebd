"""FedCAC: critical parameters are averaged among similar clients (Wu et al., ICCV 2023)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.mixing import mix
from flbench.algorithms.shared.prefixes import prefixed, prefixed_names
from flbench.algorithms.shared.sparse import packed

CRITICAL = "critical."  # prefix of a mask M_i, bool, of the shape of the parameter
CUSTOM = "custom."  # prefix of c_i at the critical entries, zero elsewhere
BITS = "critical_bits"  # the masks of all parameters, packed, as they are sent
UNCHANGED = 16  # machine epsilons of the largest change in the net, at most: no change
BLOCK = 2**21  # bytes of packed masks per client that are unpacked at once


@fl.ALGORITHMS.register("fedcac")
class FedCAC(fl.Algorithm):
    """Each client's critical parameters come from clients with the same critical positions.

    Client i starts at s_i and trains all parameters to theta_i. In each parameter, the k = int(tau
    size) entries of the largest score |(theta_i - s_i) theta_i| are critical, M_i = 1. The server
    compares the masks of the cohort over all parameters, in round t = 1, 2, ...:

        O_ij = 1 - ||M_i - M_j||_1 / (2 |M_i|)                                       j != i
        thr  = mean O_ij + (t / (beta T)) (max O_ij - mean O_ij)                     over i != j
        c_i  = mean of theta_j over i and the clients j with O_ij >= thr             uniform
        w    = sum_j p_j theta_j                                                     p_j ~ n_j

    Client i starts the next round, and is evaluated, with s_i = M_i c_i + (1 - M_i) w; `gm` is w.
    All other entries, BatchNorm statistics among them, are those of w. A client that never took
    part has no critical entry.

    Readings. A mask is made of the last local training alone. Of scores that differ by rounding
    alone, the first positions are critical. An entry that has not changed is not critical, and
    neither is one whose change is rounding (a bias before BatchNorm, whose gradient is zero), so
    there may be fewer than k; in the authors' code, which takes all scores above 1e-20 where the
    k-th is at most 1e-10, a parameter of zeros becomes critical as a whole. The denominator of O_ij
    is that of client i. `beta` is a share of the rounds, because the authors' 100 belongs to their
    number of rounds. Deviation: the paper asks all clients in every round; here O and thr are over
    the cohort, t counts rounds of the run, and an absent client keeps M_i and c_i, and starts its
    next round with the newest w. A client without critical entries has no partners and is not
    counted in thr. The server sends w before the round and the critical entries of c_i after it.
    The authors' code ends with a fine-tuning of a copy of each client's model; here there is none.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedCAC."""

        tau: float = Field(
            0.5, ge=0, le=1, description="share of the entries of each parameter that are critical"
        )
        beta: float = Field(
            1 / 3,
            gt=0,
            description="share of the rounds T after which clients have no partners any more"
            " (authors: 100 of 300 rounds)",
        )

    config: Config
    paper = fl.Paper(
        "Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through"
        " Cautiously Aggressive Collaboration",
        "Wu, Liu, Niu, Zhu, Tang",
        "ICCV 2023 (arXiv 2309.11103)",
    )
    communication = fl.Communication(
        down="w; critical entries of a mixture after the round",
        up="w, 1 bit per parameter",
        keeps="a mask, critical entries of a mixture",
    )

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the net's parameters, in the order of packed masks."""
        return self.setting.net.parameters

    def notes(self) -> list[str]:
        if self.config.tau == 0:
            return ["fedcac: no parameter is critical (algorithm.tau=0), which is FedAvg."]
        return []

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        params = fl.only(start, self.parameters)
        masks = {name: torch.zeros_like(value, dtype=torch.bool) for name, value in params.items()}
        values = {name: torch.zeros_like(value) for name, value in params.items()}
        own = prefixed(CRITICAL, masks) | prefixed(CUSTOM, values)
        return server, clients | fl.repeat(own, self.setting.clients)

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        names = self.parameters
        steps = (
            fl.Transform(Composed(names)),
            self.phase(*self.terms()),
            fl.Transform(FindCritical(self.config.tau, names)),
        )
        own = prefixed_names(CRITICAL, names) | prefixed_names(CUSTOM, names)
        return fl.LocalProgram(steps, keeps | own, sends | {BITS})

    # Server

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        sent, ids = results.sent.values, results.ids
        sizes, overlaps = self.overlaps(sent[BITS])  # [K], [K, K]
        t = (state.round + 1) / (self.config.beta * self.setting.rounds)

        pairs = (sizes > 0)[:, None] & (sizes > 0) & ~torch.eye(len(ids), dtype=torch.bool)
        partners = torch.eye(len(ids), dtype=torch.bool)
        metrics = {}
        if bool(pairs.any()):
            mean, largest = overlaps[pairs].mean(), overlaps[pairs].amax()
            partners |= pairs & (overlaps >= mean + t * (largest - mean) - 1e-12)
            metrics["overlap_mean"] = float(mean)
        metrics["partners"] = float(partners.sum(dim=1).double().mean()) - 1

        weights = partners.double() / partners.sum(dim=1, keepdim=True)
        custom = prefixed(CUSTOM, mix(fl.only(sent, self.parameters), weights))
        masks = prefixed(CUSTOM, self.unpacked(sent))
        return fl.Update(self.mean(results), reply=fl.Message(custom, masks), metrics=metrics)

    def overlaps(self, bits: Tensor) -> tuple[Tensor, Tensor]:
        """Return |M_i| [K] and O_ij [K, K], both float64, of packed masks [K, bytes] uint8.

        O_ij is 0 where |M_i| is 0.
        """
        common = torch.zeros(len(bits), len(bits), dtype=torch.float64)
        for block in torch.split(bits, BLOCK // len(bits) + 1, dim=1):
            some = unpack(block).double()
            common += some @ some.T
        sizes = common.diagonal().clone()
        apart = sizes[:, None] + sizes - 2 * common
        overlap = 1 - apart / (2 * sizes[:, None]).clamp_min(1.0)
        return sizes, torch.where(sizes[:, None] > 0, overlap, 0.0)

    def unpacked(self, sent: fl.Tree) -> fl.Tree:
        """Return the masks [K, ...] bool of each parameter from what the clients sent."""
        return dict(_cut(unpack(sent[BITS]), fl.only(sent, self.parameters), self.parameters))

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        models = super().deploy(state, ids)
        personal = replace(models["personal"], weights=Composed(self.parameters))
        return models | {"personal": personal}


def unpack(bits: Tensor) -> Tensor:
    """Return masks [K, 8 bytes] bool of packed ones [K, bytes] uint8.

    >>> unpack(packed([torch.tensor([True, False, True])])[None]).int()
    tensor([[1, 0, 1, 0, 0, 0, 0, 0]], dtype=torch.int32)
    """
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits[:, :, None] >> shifts) & 1).bool().flatten(1)


def _cut(flat: Tensor, like: fl.Tree, names: tuple[str, ...]) -> Iterator[tuple[str, Tensor]]:
    """Yield rows [K, ...] of each parameter from flat rows [K, entries of all parameters]."""
    first = 0
    for name in names:
        shape = like[name].shape
        last = first + prod(shape[1:])
        yield name, flat[:, first:last].reshape(shape)
        first = last


@dataclass(frozen=True)
class Composed:
    """The composed model s_i = M_i c_i + (1 - M_i) w, as context -> leaves of the net.

    Attributes:
        names: Names of the net's parameters; the received w is among the leaves under their names.
    """

    names: tuple[str, ...]

    def __call__(self, context: fl.Context) -> fl.Tree:
        """Return the parameters of the composed model."""
        leaves = context.leaves
        return {
            name: torch.where(leaves[CRITICAL + name], leaves[CUSTOM + name], leaves[name])
            for name in self.names
        }


@dataclass(frozen=True)
class FindCritical:
    """Function of a Transform after training: finds the critical entries.

    Attributes:
        tau: Share of the entries of a parameter.
        names: Names of the net's parameters, in the order in which masks are packed.
    """

    tau: float
    names: tuple[str, ...]

    def __call__(self, context: fl.Context) -> fl.Tree:
        """Return the masks, as leaves and packed, and the trained values until the reply comes."""
        leaves = context.leaves
        began = Composed(self.names)(context.with_leaves(context.start))
        changes = {name: leaves[name] - began[name] for name in self.names}
        most = torch.stack([change.abs().amax() for change in changes.values()]).amax()
        still = UNCHANGED * torch.finfo(most.dtype).eps * most
        masks = {
            name: self._mask(leaves[name], torch.where(change.abs() > still, change, 0.0))
            for name, change in changes.items()
        }
        values = {name: torch.where(masks[name], leaves[name], 0.0) for name in self.names}
        bits = {BITS: packed(list(masks.values()))}
        return prefixed(CRITICAL, masks) | prefixed(CUSTOM, values) | bits

    def _mask(self, theta: Tensor, change: Tensor) -> Tensor:
        """Return the critical entries of one parameter, bool."""
        score = (change * theta).abs().flatten()
        k = int(self.tau * len(score))
        found = (
            fl.largest(score, k) & (score > 0) if k else torch.zeros_like(score, dtype=torch.bool)
        )
        return found.reshape(theta.shape)
