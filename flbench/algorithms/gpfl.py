"""GPFL: a generic and a personal route for features (Zhang, Hua, Wang, Song et al., ICCV 2023)."""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import layer_norm, linear

import flbench.algorithms as fl
from flbench.algorithms.shared.linear_norm import linear_norm
from flbench.algorithms.shared.prototypes import CountClasses
from flbench.losses.cross_entropy import ScoresCrossEntropy, mean_cross_entropy
from flbench.losses.similarity import cosines

EMBEDDINGS = "gce.weight"  # G [C, D], the embeddings of categories
LAYERS = ("cov.gamma", "cov.beta")  # the two parts of the conditional valve
COV = tuple(
    f"{layer}.{name}" for layer in LAYERS for name in ("weight", "bias", "norm.weight", "norm.bias")
)
SHARED = frozenset({*COV, EMBEDDINGS})
GENERIC, PERSONAL = "cond.g", "cond.q"  # g and q_i [D], the conditional inputs


@fl.ALGORITHMS.register("gpfl")
class GPFL(fl.Algorithm):
    """A conditional valve sends each feature through a generic and a personal route.

    Shared: the body, category embeddings G [C, D] and the valve CoV; personal: the head. For
    features z of D numbers and a conditional input c [D], with LN = LayerNorm,

        CoV(z, c) = ReLU( (LN(ReLU(A_1 c + a_1)) + 1) * z + LN(ReLU(A_2 c + a_2)) )

    Conditional inputs of client i are g = mean_c G_c and q_i = sum_c (n_c / n) G_c; they are
    constant in a round. Local training, one phase on body, head, CoV and G; Ghat is the received G:

        z_P = CoV(z, q_i),   z_G = CoV(z, g)
        L   = CE(head(z_P), y) + CE(cos(z_G, G_c), y) + lam ||Z_G - Ghat[y]||_F
              + (nu / 2) (||G||^2 + ||CoV||^2)

    Server: body, CoV, G <- sum_i p_i of them, with p_i = n_i / sum_j n_j. `personal` is head(z_P)
    with the newest shared parts and the client's q_i. There is no global model.

    Readings. The authors' code is taken, which made the printed numbers; the paper differs in
    places. Cosines are logits without a scale, so that the second term is at least ln(1 + (C - 1)
    exp(-2)), which a client of one class can come near to (0.797 with ten classes), and the loss is
    never near 0. The third is the norm of the whole batch's differences [B, D], neither squared nor
    divided by B. Conditional inputs are those of the client's own G after its last training, zero
    before it; in the paper they come from the received G. The paper's poster also divides q_i by C,
    gives CoV the features as an input, and has norms that are not squared in the term of nu. In the
    code nu is weight decay, on the parameters of LN too; as a term of the loss it is the same for
    SGD. It is in the logged loss, and `train.optimizer.weight_decay` acts on top. The factors and
    offsets of features that CoV makes differ between clients from the second round on, so that the
    shared body needs more rounds than under FedPer. Deviations: their loaders drop the last batch,
    also where classes are counted and where models are tested. There, conditional inputs of absent
    clients follow the newest G; here they stay. Embeddings are drawn from N(0, 1).
    """

    class Config(fl.AlgorithmConfig):
        """Keys of GPFL."""

        lam: float = Field(
            0.01,
            ge=0,
            description="weight of the distance of generic features to the received embeddings; its"
            " scale depends on train.batch_size",
        )
        nu: float = Field(
            0.1, ge=0, description="weight decay of the embeddings and of the conditional valve"
        )

    config: Config
    paper = fl.Paper(
        "GPFL: Simultaneously Learning Global and Personalized Feature Information for Personalized"
        " Federated Learning",
        "Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan",
        "ICCV 2023 (arXiv 2308.10279)",
    )
    communication = fl.Communication(
        down="body, 2 D^2 + 6 D + C D numbers",
        up="body, 2 D^2 + 6 D + C D numbers",
        keeps="head, 2 vectors of D numbers",
    )
    needs = (fl.LINEAR_HEAD,)

    def personal(self) -> frozenset[str]:
        return self.setting.net.names("head")

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        rng, d = fl.generator(self.setting.seed, "method"), self.setting.net.features
        like = start[self.setting.net.parameters[0]]
        embeddings = torch.from_numpy(rng.normal(size=(self.setting.classes, d)))
        server[EMBEDDINGS] = embeddings.to(like.dtype)
        for layer in LAYERS:
            server |= linear_norm(rng, layer, d, d, like)
        conditions = {name: like.new_zeros(d) for name in (GENERIC, PERSONAL)}
        return server, clients | fl.repeat(conditions, self.setting.clients)

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        terms = (
            ScoresCrossEntropy(scores=fl.bind(scores, self.linear_head)),
            fl.Term(1.0, fl.bind(guidance, self.config.lam)),
            fl.Term(self.config.nu, decay),
        )
        steps = (
            self.phase(*terms, train=frozenset(self.setting.net.parameters) | SHARED),
            fl.Statistic("held", CountClasses(self.setting.classes)),
            fl.Transform(conditions),
        )
        return fl.LocalProgram(steps, keeps | {GENERIC, PERSONAL}, sends | SHARED)

    # Server: the weighted mean of what was sent

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        predict = fl.bind(scores, self.linear_head)
        return {"personal": fl.Deployment(self.dispatch(state, ids), predict=predict)}


def conditions(context: fl.Context) -> fl.Tree:
    """Return g [D] and q_i [D], of the present embeddings and the client's class counts."""
    embeddings, counts = context.leaves[EMBEDDINGS].double(), context.ctx["held.counts"]
    shares = counts / counts.sum().clamp_min(1.0)  # [C]
    dtype = context.leaves[EMBEDDINGS].dtype
    return {
        GENERIC: embeddings.mean(dim=0).to(dtype),
        PERSONAL: (shares @ embeddings).to(dtype),
    }


def valve(leaves: fl.Tree, features: Tensor, condition: Tensor) -> Tensor:
    """Return CoV(z, c) [B, D].

    Args:
        leaves: Leaves with the parameters of CoV.
        features: z [B, D].
        condition: c [D].
    """
    row = condition[None]  # [1, D]
    gamma, beta = (
        layer_norm(
            linear(row, leaves[f"{layer}.weight"], leaves[f"{layer}.bias"]).relu(),
            condition.shape,
            leaves[f"{layer}.norm.weight"],
            leaves[f"{layer}.norm.bias"],
        )
        for layer in LAYERS
    )
    return ((gamma + 1) * features + beta).relu()


def scores(context: fl.Context, head: fl.LinearHead) -> Tensor:
    """Return the logits [B, C] of the personal route, head(CoV(z, q_i))."""
    leaves = context.leaves
    return head(leaves, valve(leaves, context.out.features, leaves[PERSONAL]))


def guidance(context: fl.Context, lam: float) -> Tensor:
    """Return the angle of the generic route, a cross entropy of cosines, plus lam magnitudes."""
    leaves, batch = context.leaves, context.batch
    routed = valve(leaves, context.out.features, leaves[GENERIC])  # [B, D]
    angle = mean_cross_entropy(cosines(routed, leaves[EMBEDDINGS]), batch.y, batch.mask)
    far = (routed - context.start[EMBEDDINGS][batch.y]).square()  # [B, D]
    total = torch.where(batch.mask[:, None], far, 0.0).sum()
    return angle + lam * (total + 1e-12).sqrt()  # the gradient at 0 is finite


def decay(context: fl.Context) -> Tensor:
    """Return 1/2 (||G||^2 + ||CoV||^2), 0-dim."""
    squares = [context.leaves[name].square().sum() for name in (EMBEDDINGS, *COV)]
    return 0.5 * torch.stack(squares).sum()
