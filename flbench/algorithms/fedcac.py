"""FedCAC: critical parameters are averaged among similar clients (Wu et al., ICCV 2023)."""

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.mixing import mix
from flbench.algorithms.shared.second import Second
from flbench.algorithms.shared.sparse import packed

CRITICAL, CUSTOM = "critical.", "custom."  # prefixes of M_i and c_i
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

    @property
    def critical(self) -> Second:
        """The masks M_i, bool, of the shapes of the parameters."""
        return Second(CRITICAL, self.parameters)

    @property
    def custom(self) -> Second:
        """c_i at the critical entries, zero elsewhere."""
        return Second(CUSTOM, self.parameters)

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        params = fl.only(start, self.parameters)
        masks = {name: torch.zeros_like(value, dtype=torch.bool) for name, value in params.items()}
        values = {name: torch.zeros_like(value) for name, value in params.items()}
        own = self.critical.start(masks) | self.custom.start(values)
        return server, clients | fl.repeat(own, self.setting.clients)

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        names = self.parameters
        steps = (
            fl.Transform(fl.bind(composed, names)),
            self.phase(*self.terms()),
            fl.Transform(fl.bind(find_critical, names, self.config.tau)),
        )
        own = self.critical.leaves | self.custom.leaves
        return fl.LocalProgram(steps, keeps | own, sends | {BITS})

    # Server

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        sent, ids = results.sent.values, results.ids
        sizes, overlap = overlaps(sent[BITS])  # [K], [K, K]
        t = (state.round + 1) / (self.config.beta * self.setting.rounds)

        pairs = (sizes > 0)[:, None] & (sizes > 0) & ~torch.eye(len(ids), dtype=torch.bool)
        partners = torch.eye(len(ids), dtype=torch.bool)
        metrics = {}
        if bool(pairs.any()):
            mean, largest = overlap[pairs].mean(), overlap[pairs].amax()
            partners |= pairs & (overlap >= mean + t * (largest - mean) - 1e-12)
            metrics["overlap_mean"] = float(mean)
        metrics["partners"] = float(partners.sum(dim=1).double().mean()) - 1

        weights = partners.double() / partners.sum(dim=1, keepdim=True)
        thetas = fl.only(sent, self.parameters)
        numels = [thetas[name][0].numel() for name in self.parameters]
        flat = torch.split(unpack(sent[BITS])[:, : sum(numels)], numels, dim=1)
        masks = {
            name: mask.reshape(thetas[name].shape)
            for name, mask in zip(self.parameters, flat, strict=True)
        }
        custom = self.custom.start(mix(thetas, weights))
        reply = fl.Message(custom, self.custom.start(masks))
        return fl.Update(self.mean(results), reply=reply, metrics=metrics)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        models = super().deploy(state, ids)
        personal = replace(models["personal"], weights=fl.bind(composed, self.parameters))
        return models | {"personal": personal}


def overlaps(bits: Tensor) -> tuple[Tensor, Tensor]:
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


def unpack(bits: Tensor) -> Tensor:
    """Return masks [K, 8 bytes] bool of packed ones [K, bytes] uint8.

    >>> unpack(packed([torch.tensor([True, False, True])])[None]).int()
    tensor([[1, 0, 1, 0, 0, 0, 0, 0]], dtype=torch.int32)
    """
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits[:, :, None] >> shifts) & 1).bool().flatten(1)


def composed(context: fl.Context, names: tuple[str, ...]) -> fl.Tree:
    """Return s_i = M_i c_i + (1 - M_i) w; the received w is among the leaves."""
    leaves = context.leaves
    return {
        name: torch.where(leaves[CRITICAL + name], leaves[CUSTOM + name], leaves[name])
        for name in names
    }


def find_critical(context: fl.Context, names: tuple[str, ...], tau: float) -> fl.Tree:
    """Return the masks, as leaves and packed, and the trained values until the reply comes."""
    leaves = context.leaves
    began = composed(context.with_leaves(context.start), names)
    changes = {name: leaves[name] - began[name] for name in names}
    most = torch.stack([change.abs().amax() for change in changes.values()]).amax()
    still = UNCHANGED * torch.finfo(most.dtype).eps * most
    masks: fl.Tree = {}
    for name, change in changes.items():
        moved = torch.where(change.abs() > still, change, 0.0)
        score = (moved * leaves[name]).abs().flatten()
        k = int(tau * len(score))
        mask = fl.largest(score, k) & (score > 0) if k else torch.zeros_like(score).bool()
        masks[name] = mask.reshape(change.shape)
    values = {name: torch.where(masks[name], leaves[name], 0.0) for name in names}
    bits = {BITS: packed(list(masks.values()))}
    return Second(CRITICAL, names).start(masks) | Second(CUSTOM, names).start(values) | bits
