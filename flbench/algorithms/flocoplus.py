"""Floco+: Floco with a personal model for each client (Grinwald, Wiesner, Nakajima, 2024)."""

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.floco import ENDPOINTS, POINT, Floco, at_point
from flbench.algorithms.shared.second import PARTICIPATED, LastModel, Second
from flbench.losses import Proximal
from flbench.losses.cross_entropy import ScoresCrossEntropy


@fl.ALGORITHMS.register("flocoplus")
class FlocoPlus(Floco):
    """Each client of Floco keeps a second model, which is pulled to the shared one.

    The personal model v_i (body, endpoints, bias) starts as the initial one. In each round, after
    the shared model, it is trained on cross entropy + (lam / 2) ||v_i - w||^2 with the received w
    and points of the same law, and `personal` is v_i at alpha_i; `shared` is the model of Floco. A
    client that never took part is evaluated with the shared model at the centre.

    Readings. lam (v - w) is added to the gradient; the code adds lam v - w, trains v_i with points
    of the whole simplex in all rounds, and evaluates it at the centre, which the Flower baseline of
    the same authors mended. Both passes see the same batches, with points of their own; the code
    draws the batches of the second pass anew.
    """

    class Config(Floco.Config):
        """Keys of Floco+."""

        lam: float = Field(
            1.0, ge=0, description="factor of the pull of the personal model to the received one"
        )
        personal_epochs: int | None = fl.epochs(
            None,
            "training of the personal model in a round (default: train.local_epochs or"
            " train.local_steps)",
        )

    config: Config
    communication = replace(Floco.communication, keeps="a body, M heads, a bias")

    @property
    def v(self) -> LastModel:
        """The model v_i; with `train.batchnorm=drop` it has no statistics of its own."""
        has = self.split()[0] | self.shared
        return LastModel("v.", (*(n for n in self.setting.net.leaves if n in has), ENDPOINTS))

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        return server, clients | fl.repeat(self.v.start(start | server), self.setting.clients)

    def program(self, state: fl.State) -> fl.LocalProgram:
        program = super().program(state)
        program = replace(program, keeps=program.keeps | self.v.leaves)
        if self.stage(state).name == "project":
            return program
        steps = (*program.steps, self.personal_phase(state), fl.Transform(take_part))
        return replace(program, steps=steps)

    def personal_phase(self, state: fl.State) -> fl.Phase:
        """Return the training of v_i."""
        parameters = (name for name in self.setting.net.parameters if name in self.shared)
        trained, v = Second(self.v.prefix, (*parameters, ENDPOINTS)), self.v
        return self.phase(
            ScoresCrossEntropy(scores=self.random_scores(state, v.prefix)),
            Proximal(trained.names, self.config.lam, prefix=v.prefix),
            train=trained.leaves,
            epochs=self.config.personal_epochs,
            weights=Second(v.prefix, v.names),
        )

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        models = super().deploy(state, ids)
        weights = fl.bind(personal_at_point, self.linear_head, self.v)
        personal = replace(models["personal"], weights=weights)
        return models | {"personal": personal, "shared": models["personal"]}


def take_part(context: fl.Context) -> fl.Tree:
    """Write down that the client has trained a personal model."""
    return {PARTICIPATED: torch.ones_like(context.leaves[PARTICIPATED])}


def personal_at_point(context: fl.Context, head: fl.LinearHead, v: LastModel) -> fl.Tree:
    """Return v_i at the client's point, or the shared model at the centre of the simplex."""
    own, ctx = v(context), context.ctx
    if POINT in ctx:
        centre = torch.full_like(ctx[POINT], 1 / len(ctx[POINT]))
        ctx = {POINT: torch.where(context.leaves[PARTICIPATED], ctx[POINT], centre)}
    return own | at_point(context.with_leaves(own, ctx), head)
