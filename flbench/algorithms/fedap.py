"""FedAP: models are mixed by the similarity of BatchNorm inputs (Lu et al., 2022)."""

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.batchnorm import reestimate_batchnorm
from flbench.algorithms.shared.mixing import mix_latest
from flbench.client.batchnorm import channel_sums


@fl.ALGORITHMS.register("fedap")
class FedAp(fl.Algorithm):
    """Clients keep BatchNorm layers and mix all others, most with clients of similar statistics.

    The server mixes theta_i <- sum_j W_ij theta_j, where theta are all layers but BatchNorm,
    W_ii = lam, and W_ij is proportional to 1 / D_ij. D_ij is the sum over BatchNorm layers of the
    distance between mean and standard deviation of the layer's inputs at i and j. It is computed
    once, with a common model in eval mode. After that a client receives its mixture and sends
    theta_i. Absent clients enter a mixture with their last upload.

    Deviations: the paper pretrains the common model on pooled data, which a federation does not
    have; here FedAvg runs for the first rounds (`pretrain_share`). In the authors' code the
    pretrained model serves for the mixing matrix W alone, and training starts from the initial
    model; here training continues from the pretrained model. Other methods leave out a client that
    made no step; here its upload is used, because what it sends is its mixture.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedAP."""

        lam: float = Field(
            0.5, ge=0, le=1, description="weight of a client's own model in its mixture of models"
        )
        pretrain_share: float = Field(
            0.1, gt=0, lt=1, description="share of train.rounds that are pretraining by FedAvg"
        )

    config: Config
    by_client = (("mixing", (0, 1)), ("known", (0,)))
    paper = fl.Paper(
        "Personalized Federated Learning with Adaptive Batchnorm for Healthcare",
        "Lu, Wang, Chen, Qin, Xu, Dimitriadis, Qin",
        "IEEE Transactions on Big Data, 2022 (arXiv 2112.00734)",
    )
    communication = fl.Communication(
        down="w while pretraining, then w - BatchNorm",
        up="w while pretraining, then w - BatchNorm; once two numbers per BatchNorm channel",
        keeps="BatchNorm",
    )
    needs = (fl.PAIRS,)

    def requires(self) -> list[str]:
        unmet = super().requires()
        if not self.normalised():
            unmet.append(
                "the net has no BatchNorm layer. Choose a net that has one, such as"
                " model.name=lenet5."
            )
        if self.setting.rounds < 2:
            unmet.append("train.rounds=1 leaves no round after pretraining. Raise train.rounds.")
        return unmet

    def normalised(self) -> tuple[str, ...]:
        """Return the names of the BatchNorm layers, in order."""
        return tuple(layer.name for layer in self.setting.net.layers if layer.kind == "batchnorm")

    def stages(self) -> tuple[fl.Stage, ...]:
        rounds = self.setting.rounds
        length = max(1, int(self.config.pretrain_share * rounds + 1e-9))
        return (
            fl.Stage("pretrain", length),
            fl.Stage("statistics", 1, setup=True),
            fl.Stage("train", rounds - length),
        )

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        keeps, sends = self.split()
        clients = self.setting.clients
        known = torch.zeros(clients, dtype=torch.bool)
        server = {"mixing": torch.eye(clients, dtype=torch.float64), "known": known}
        return fl.only(start, sends) | server, fl.repeat(fl.only(start, keeps | sends), clients)

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        local = self.setting.net.names("batchnorm")
        match self.stage(state).name:
            case "pretrain":
                return super().program(state)
            case "statistics":
                layers = self.normalised()
                moments = {f"{kind}.{layer}" for layer in layers for kind in ("mean", "variance")}
                steps = (
                    *reestimate_batchnorm(self.setting),
                    fl.Statistic("inputs", fl.bind(input_sums, layers)),
                    fl.Transform(fl.bind(input_moments, layers)),
                )
                return fl.LocalProgram(steps, (keeps | sends) & local, frozenset(moments))
            case _:
                return fl.LocalProgram((self.phase(*self.terms()),), keeps | sends, sends - local)

    # Server

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        sends = self.split()[1]
        if self.stage(state).name != "train":
            net = {} if state.is_initial else fl.only(state.server, sends)
            return fl.Dispatch(fl.Message(net))
        rows = fl.only(state.clients, sends - self.setting.net.names("batchnorm"))
        weights, known = state.server["mixing"][ids], state.server["known"]
        mixed = mix_latest(rows, weights, known=known, common=state.server)
        return fl.Dispatch(rows=fl.Message(mixed))

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        match self.stage(state).name:
            case "pretrain":
                return super().aggregate(state, results)
            case "statistics":
                distance = distances(results.sent.values, self.normalised())
                mixing = torch.eye(self.setting.clients, dtype=torch.float64)
                mixing[results.ids[:, None], results.ids] = near_weights(distance, self.config.lam)
                return fl.Update({"mixing": mixing})
            case _:
                return fl.Update({"known": state.server["known"].index_fill(0, results.ids, True)})


def input_sums(context: fl.Context, layers: tuple[str, ...]) -> fl.Tree:
    """Return sums of the inputs of BatchNorm layers over the samples and positions of a batch.

    They are `sum.LAYER` and `squares.LAYER` [channels] float64, and `count.LAYER` [].
    """
    found = context.apply(context.leaves, context.batch.x, activations=layers).activations
    sums: fl.Tree = {}
    for layer in layers:
        of_layer = channel_sums(found[layer][0], context.batch.mask)
        sums |= {f"{key}.{layer}": value for key, value in of_layer.items()}
    return sums


def input_moments(context: fl.Context, layers: tuple[str, ...]) -> fl.Tree:
    """Return `mean.LAYER` and `variance.LAYER` [channels] of all layers' inputs."""
    ctx, moments = context.ctx, dict[str, Tensor]()
    for layer in layers:
        count = ctx[f"inputs.count.{layer}"].clamp_min(1)
        mean = ctx[f"inputs.sum.{layer}"] / count
        variance = (ctx[f"inputs.squares.{layer}"] / count - mean.square()).clamp_min(0.0)
        dtype = context.leaves[f"{layer}.weight"].dtype
        moments[f"mean.{layer}"], moments[f"variance.{layer}"] = mean.to(dtype), variance.to(dtype)
    return moments


def distances(sent: fl.Tree, layers: tuple[str, ...]) -> Tensor:
    """Return the distances D [K, K] float64 between the input statistics of K clients.

    D_ij = sum_l sqrt(||mu_i - mu_j||^2 + ||sigma_i - sigma_j||^2), with means mu and standard
    deviations sigma of layer l.

    Args:
        sent: `mean.LAYER` and `variance.LAYER`, [K, channels] each.
        layers: Names of the layers, at least one.
    """
    parts = []
    for layer in layers:
        both = torch.cat([sent[f"mean.{layer}"], sent[f"variance.{layer}"].sqrt()], dim=1).double()
        # Computed through products, the distance of equal clients would not be exactly zero.
        parts.append(torch.cdist(both, both, compute_mode="donot_use_mm_for_euclid_dist"))
    return torch.stack(parts).sum(dim=0)


def near_weights(distance: Tensor, own: float) -> Tensor:
    """Return mixing weights W [K, K], where rows sum to 1 and near clients have larger weights.

    W_ii = own, and the other entries of a row are proportional to 1 / distance. A single client has
    weight 1.
    """
    if len(distance) == 1:
        return torch.ones_like(distance)
    near = (1.0 / distance.clamp_min(1e-12)).fill_diagonal_(0.0)
    return ((1 - own) * near / near.sum(dim=1, keepdim=True)).fill_diagonal_(own)
