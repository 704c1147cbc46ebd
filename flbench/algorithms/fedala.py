"""FedALA: each client learns, entry by entry, how much of the global head to take (Zhang, 2023)."""

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.batchnorm import reestimate_batchnorm, weights_of_trained
from flbench.algorithms.shared.second import LastModel, Second
from flbench.losses import CrossEntropy

OWN = "own."  # prefix of the client's model of its last participation, theta_i
WEIGHT = "ala."  # prefix of the mixing weights W_i
LEARNT = "settled"  # [] bool: whether the client has learnt its mixing weights once

MIXED = 2  # p, the number of parameter tensors (not layers) at the net's end that are mixed
WINDOW, SPREAD = 10, 0.1  # the first learning ends when so many losses have a smaller deviation
MOST_EPOCHS = 50  # of the first learning


@fl.ALGORITHMS.register("fedala")
class FedAla(fl.Algorithm):
    """A client mixes the end of the received model with its own, with weights that it learns.

    Before training, the last p = 2 parameter tensors become theta_i + (w - theta_i) * W_i, where w
    is the received model, theta_i the client's own of its last participation, and W_i has one
    weight per entry; all other tensors are those of w. Then the client trains on cross entropy and
    sends the whole model.

    W_i starts at 1 and is learnt by W_i <- clip(W_i - eta g * (w - theta_i), 0, 1), where g is the
    gradient of the loss with respect to the mixed tensors (Algorithm 1), on a drawn part of the
    training samples, with the rest of the net fixed. Learning takes one epoch, but at the first
    participation at which w and theta_i differ, it continues until the last ten losses have a
    standard deviation below 0.1, as in the authors' code. The evaluated model is the newest w after
    mixing and before training, on a copy: the weights do not change. With eta = 0 the method equals
    FedAvg to the bit.

    Deviations: the losses that must settle are means of epochs (the authors': of the last batch of
    each epoch), and the first learning has at most 50 epochs. BatchNorm is in eval mode while
    W_i is learnt. `train.schedule` scales eta too. A client's training loss and number of steps
    include those of W_i.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedALA."""

        eta: float = Field(1.0, ge=0, description="learning rate of the mixing weights")
        rand_percent: float = Field(
            80,
            gt=0,
            le=100,
            description="percentage of the training samples from which mixing weights are learnt",
        )

    config: Config
    paper = fl.Paper(
        "FedALA: Adaptive Local Aggregation for Personalized Federated Learning",
        "Zhang, Hua, Wang, Song, Xue, Ma, Guan",
        "AAAI 2023",
        "10.1609/aaai.v37i9.26330",
    )
    communication = fl.Communication(
        down="w", up="w", keeps="its last p tensors, and as many weights"
    )

    def mixed_names(self) -> tuple[str, ...]:
        """Return the names of the parameters that are mixed."""
        return self.setting.net.parameters[-MIXED:]

    @property
    def own(self) -> LastModel:
        """theta_i: what a client keeps of its model of its last participation."""
        return LastModel(OWN, self.mixed_names())

    @property
    def mixing_weights(self) -> Second:
        """W_i: one weight for each entry."""
        return Second(WEIGHT, self.mixed_names())

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        ones = {name: torch.ones_like(value) for name, value in start.items()}
        rows = self.own.start(start) | self.mixing_weights.start(ones)
        rows[LEARNT] = torch.tensor(False)
        return server, clients | fl.repeat(rows, self.setting.clients)

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        keeps |= self.own.leaves | self.mixing_weights.leaves | {LEARNT}
        train = self.phase(*self.terms())
        return fl.LocalProgram((*self.mixing(), train, self.own.copy()), keeps, sends)

    def mixing(self) -> tuple[fl.Step, ...]:
        """Return the steps that learn W_i and write the mixed model into the leaves."""
        c, names = self.config, self.mixed_names()
        learn = fl.Phase(
            self.mixing_weights.leaves,
            (CrossEntropy(),),
            fl.OptimizerConfig(name="sgd", lr=c.eta),
            epochs=MOST_EPOCHS,
            weights=fl.bind(mixture, names),
            project=unit_interval,
            until=fl.bind(is_learnt, names),
            batchnorm="eval",
            samples=fl.Samples(high=c.rand_percent / 100, redraw="round"),
        )
        write = fl.Transform(fl.bind(write_mixture, names))
        return (*reestimate_batchnorm(self.setting), self.own.recall(), learn, write)

    def weights(self, results: fl.Results) -> Tensor:
        """Return the weight of each client of the cohort, 0 if its model took no step."""
        return weights_of_trained(super().weights(results), self.setting, results)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        deployments = super().deploy(state, ids)
        program = fl.LocalProgram((*self.mixing(), *reestimate_batchnorm(self.setting)))
        return deployments | {"personal": replace(deployments["personal"], program=program)}


def mixture(context: fl.Context, names: tuple[str, ...]) -> fl.Tree:
    """Return own + (received - own) * weight, written so that weight 1 is exactly the received."""
    leaves, mixed = context.leaves, {}
    for name in names:
        own, received = leaves[OWN + name], leaves[name]
        mixed[name] = received + (own - received) * (1 - leaves[WEIGHT + name])
    return mixed


def differ(leaves: fl.Tree, names: tuple[str, ...]) -> Tensor:
    """Return [] bool: whether the received and the own tensors differ in any entry."""
    return torch.stack([(leaves[OWN + n] != leaves[n]).any() for n in names]).any()


def write_mixture(context: fl.Context, names: tuple[str, ...]) -> fl.Tree:
    """Write the mixed tensors into the leaves, and whether weights have been learnt once."""
    learnt = context.leaves[LEARNT] | differ(context.leaves, names)
    return mixture(context, names) | {LEARNT: learnt}


def is_learnt(context: fl.Context, losses: Tensor, done: Tensor, names: tuple[str, ...]) -> Tensor:
    """Return [] bool: whether the learning of W_i ends, for the mean `losses` [50] of its epochs.

    It has no epoch if both models are equal, one after the first learning, and in that as many as
    it takes until the last losses agree. Those of the first `done` epochs are known.
    """
    is_first = ~context.leaves[LEARNT]
    places = done - 1 - torch.arange(WINDOW, device=losses.device)  # [WINDOW]
    last = losses[places.clamp(0, len(losses) - 1)]  # [WINDOW]
    agree = (done > WINDOW) & (last.std(correction=0) < SPREAD)
    is_over = torch.where(is_first, agree, done >= 1)
    return is_over | ~differ(context.leaves, names)


def unit_interval(context: fl.Context) -> fl.Tree:
    """Return the weights clipped to [0, 1]."""
    return {name: value.clamp(0.0, 1.0) for name, value in context.trained.items()}
