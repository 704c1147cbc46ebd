"""FedFomo: clients move towards the models of others that help them (Zhang et al., ICLR 2021)."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.batchnorm import reestimate_batchnorm

VALIDATION = 0.2  # share of the training samples on which models are compared
DECAY = 0.05  # decrease of epsilon with each participation of the client


@fl.ALGORITHMS.register("fedfomo")
class FedFomo(fl.Algorithm):
    """A client downloads models of others and moves towards those with a lower validation loss.

    Before training: theta_i <- theta_i + sum_n (w_n / sum_m w_m) (theta_n - theta_i), with
    w_n = max(0, (L_i - L_n) / (||theta_n - theta_i|| + 1e-5)). theta_i is the client's own last
    model; L_n is the mean loss of model n on the client's validation samples, a fixed fifth of its
    training samples that it never trains on. Then the client trains on the others, and sends its
    model and the weights before they are cut at 0.

    The server chooses the M models for client i one after the other: each is, with probability
    epsilon, a random one of those that are left, and otherwise the one with the largest sum of
    these weights so far; ties are broken at random. BatchNorm statistics are mixed with the same
    weights, and models are compared in eval mode.

    Source: the paper, and the authors' code for the choice of models, M and epsilon. Deviations:
    epsilon decreases with the participations of a client, in their code with the progress of the
    run; a client can be sent the model of any client that has trained, in their code of one of the
    round before.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedFomo."""

        models: int = Field(
            8,
            ge=1,
            description="largest number of other clients' models that a client downloads (M; the"
            " authors' code: 8, FedCPMD's comparison: 5)",
        )
        epsilon: float = Field(
            0.3,
            ge=0,
            le=1,
            description="probability, for each of the M models, that it is a random one instead of"
            " the one that helped the client most; 0.05 less after each participation",
        )
        evaluated: Literal["trained", "mixed"] = Field(
            "trained",
            description="the model that is evaluated: the one that the client trained last, or the"
            " mixture from which it would train next; with `mixed` the trained one is evaluated"
            " too",
        )

    config: Config
    by_client = (("preference", (0, 1)), ("uploaded", (0,)))
    paper = fl.Paper(
        "Personalized Federated Learning with First Order Model Optimization",
        "Zhang, Sapra, Fidler, Yeung, Alvarez",
        "ICLR 2021",
    )
    communication = fl.Communication(down="M models w", up="w and M weights", keeps="w")
    needs = (fl.PAIRS,)

    @property
    def most_models(self) -> int:
        """Largest number of models M that a client is sent; a single client is sent none."""
        return max(1, min(self.config.models, self.setting.clients - 1))

    def exchanged(self) -> tuple[str, ...]:
        """Return the names of the leaves of a model that is sent, in the net's order."""
        sends = self.split()[1]
        return tuple(name for name in self.setting.net.leaves if name in sends)

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        keeps, sends = self.split()
        clients = self.setting.clients
        server = {
            "preference": torch.zeros(clients, clients, dtype=torch.float64),
            "uploaded": torch.zeros(clients, dtype=torch.bool),
        }
        return server, fl.repeat(fl.only(start, keeps | sends), clients)

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        train = self.phase(*self.terms(), samples=fl.Samples(low=VALIDATION))
        steps, masks = (*self.mixing(), train), (("raw", "asked"),)
        return fl.LocalProgram(steps, keeps | sends, sends | {"raw"}, masks)

    def mixing(self) -> tuple[fl.Step, ...]:
        """Return the steps before training: compare the models that were sent, and mix."""
        names = self.exchanged()
        parameters = tuple(name for name in self.setting.net.parameters if name in names)
        losses, samples = fl.bind(sum_losses, names), fl.Samples(high=VALIDATION)
        compare = fl.Statistic("validation", losses, samples=samples)
        mix = fl.Transform(fl.bind(mixed, names, parameters))
        return (*reestimate_batchnorm(self.setting), compare, mix)

    # Server

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        chosen = self.candidates(state, ids)  # [K, M]
        asked = chosen >= 0
        rows = chosen.clamp_min(0)
        values = {f"model.{n}": state.clients[n][rows] for n in self.exchanged()}  # [K, M, ...]
        mask = dict.fromkeys([*values, "asked"], asked)
        return fl.Dispatch(rows=fl.Message(values | {"asked": asked}, mask))

    def candidates(self, state: fl.State, ids: Tensor) -> Tensor:
        """Return whose models clients `ids` [K] are sent, [K, M], -1 for none; from the state."""
        draw = fl.Draw(self.setting.seed, (state.round,), self.setting.clients)
        chosen = torch.full((len(ids), self.most_models), -1)
        for k, client in enumerate(ids.tolist()):
            others = state.server["uploaded"].clone()
            others[client] = False
            available = others.nonzero()[:, 0].numpy()
            rng = draw.method_generator(client)

            # The stable sort of a random order breaks ties at random.
            order = torch.from_numpy(rng.permutation(available))
            preference = state.server["preference"][client, order]
            best = order[preference.argsort(descending=True, stable=True)].tolist()
            random = rng.permutation(available).tolist()

            participations = int(state.participation_count[client])
            epsilon = self.config.epsilon - DECAY * participations
            explores = rng.random(self.most_models) < epsilon  # [M]
            for slot, explore in enumerate(explores[: len(available)]):
                chosen[k, slot] = picked = (random if explore else best)[0]
                random.remove(picked)
                best.remove(picked)
        return chosen

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        ids, raw = results.ids, results.sent.values["raw"].double()  # [K], [K, M]
        chosen = self.candidates(state, ids)  # the same as in `dispatch`: the state is the same
        asked = chosen >= 0

        receiver, slot = asked.nonzero(as_tuple=True)
        preference = state.server["preference"].clone()
        preference[ids[receiver], chosen[receiver, slot]] += raw[receiver, slot]
        # A model that was never trained is not sent to others.
        trained = ids[results.steps > 0]
        uploaded = state.server["uploaded"].index_fill(0, trained, True)

        metrics = {}
        if asked.any():
            metrics["helpful_share"] = float((raw[asked] > 0).double().mean())
        return fl.Update({"preference": preference, "uploaded": uploaded}, metrics=metrics)

    def learned(self, state: fl.State) -> tuple[fl.LearnedTable, ...]:
        """Return the sums of the weights by which the server chooses models for clients."""
        preference = state.server["preference"]  # [N, N], 0 for a model that was never sent
        if not preference.any():
            return ()
        table = fl.LearnedTable(
            "weights",
            "Sum over the rounds of the weights, before they are cut at 0, that each client (rows)"
            " gave to the models of the others (columns): positive where these had the lower loss"
            " on the client's validation samples; empty where it was sent none.",
            torch.where(preference == 0, torch.nan, preference),
        )
        return (table,)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        trained = fl.Deployment(fl.Dispatch())
        if self.config.evaluated == "trained":
            return {"personal": trained}
        # M models are dispatched to each client that is evaluated.
        program = fl.LocalProgram((*self.mixing(), *reestimate_batchnorm(self.setting)))
        return {"personal": fl.Deployment(self.dispatch(state, ids), program), "trained": trained}


def sum_losses(context: fl.Context, names: tuple[str, ...]) -> fl.Tree:
    """Return sums over a batch of the losses of the models that were sent and of the client's own.

    They are `sent` [M] and `own` [], float64, and the number of samples, `count` []. The leaf NAME
    of model m is `ctx["model.NAME"][m]`.
    """
    models = len(context.ctx["asked"])  # M
    x, y, mask = context.batch.x, context.batch.y, context.batch.mask
    logits = []
    for m in range(models):
        model = {name: context.ctx[f"model.{name}"][m] for name in names}
        logits.append(context.apply(context.leaves | model, x).logits)
    scores = torch.stack([*logits, context.out.logits]).double().log_softmax(dim=2)
    # [M + 1, B, C] -> [M + 1, B]
    losses = -scores.gather(2, y.expand(models + 1, -1)[:, :, None])[:, :, 0]
    losses = torch.where(mask, losses, 0.0).sum(dim=1)  # [M + 1]
    return {"sent": losses[:-1], "own": losses[-1], "count": mask.sum()}


def mixed(context: fl.Context, names: tuple[str, ...], parameters: tuple[str, ...]) -> fl.Tree:
    """Return the client's model, moved towards those with a smaller loss, and its weights.

    They are `raw` [M], before they are cut at 0, and `asked` [M] bool, which models there are.

    Args:
        context: The client after `sum_losses`.
        names: Names of the leaves of a model.
        parameters: Those of them that enter the distance between two models.
    """
    leaves, ctx = context.leaves, context.ctx
    count, asked = ctx["validation.count"], ctx["asked"]

    # raw_n = (L_i - L_n) / (||theta_n - theta_i|| + 1e-5)
    gain = (ctx["validation.own"] - ctx["validation.sent"]) / count.clamp_min(1)  # [M]
    away = {n: ctx[f"model.{n}"].double() - leaves[n].double() for n in names}  # [M, ...]
    squares = [away[name].flatten(1).square().sum(dim=1) for name in parameters]
    raw = gain / (torch.stack(squares).sum(dim=0).sqrt() + 1e-5)
    # A model whose loss overflows gets weight 0, and does not make the client fail.
    raw = torch.where(asked & (count > 0) & raw.isfinite(), raw, 0.0)

    weights = raw.clamp_min(0.0)
    total = weights.sum()
    weights = weights / torch.where(total > 0, total, 1.0)

    model: fl.Tree = {}
    for name in names:
        own = leaves[name]
        if own.is_floating_point():
            step = torch.tensordot(weights, away[name], dims=1)  # [M], [M, ...] -> [...]
            model[name] = (own.double() + step).to(own.dtype)
        else:  # BatchNorm's counter: the largest of the models with a positive weight
            helps = (weights > 0).reshape(-1, *(1,) * own.dim())
            sent = torch.where(helps, ctx[f"model.{name}"], own)
            model[name] = torch.maximum(own, sent.amax(dim=0))
    return model | {"raw": raw.to(leaves[parameters[0]].dtype), "asked": asked}
