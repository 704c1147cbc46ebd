"""Floco+: Floco with a personal model for each client (Grinwald, Wiesner, Nakajima, 2024)."""

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.floco import ENDPOINTS, POINT, Floco, at_point
from flbench.algorithms.shared.linear_head import LinearHead
from flbench.algorithms.shared.memory import PARTICIPATED
from flbench.algorithms.shared.personal_model import PersonalModel, V, personal_model
from flbench.algorithms.shared.prefixes import prefixed, prefixed_names
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
            None, "training of the personal model in a round (default: train.local_epochs)"
        )

    config: Config
    communication = replace(Floco.communication, keeps="a body, M heads, a bias")

    @property
    def own_model(self) -> PersonalModel:
        """The model v_i, without its endpoints."""
        model = personal_model(self.setting)
        return replace(model, own=model.own - {self.head.weight})

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        own = fl.only(start, self.own_model.own) | fl.only(server, {ENDPOINTS})
        v = prefixed(V, own) | {PARTICIPATED: torch.tensor(False)}
        return server, clients | fl.repeat(v, self.setting.clients)

    def program(self, state: fl.State) -> fl.LocalProgram:
        program = super().program(state)
        own = prefixed_names(V, self.own_model.own | {ENDPOINTS})
        program = replace(program, keeps=program.keeps | own | {PARTICIPATED})
        if self.stage(state) == "project":
            return program
        steps = (*program.steps, self.personal_phase(state), fl.Transform(take_part))
        return replace(program, steps=steps)

    def personal_phase(self, state: fl.State) -> fl.Phase:
        """Return the training of v_i."""
        parameters = [name for name in self.setting.net.parameters if name in self.shared]
        names = (*parameters, ENDPOINTS)
        phase = self.phase(
            ScoresCrossEntropy(scores=self.random_scores(state, V)),
            Proximal(names, self.config.lam, prefix=V),
            train=prefixed_names(V, names),
            epochs=self.config.personal_epochs,
        )
        return replace(phase, weights=self.own_model)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        models = super().deploy(state, ids)
        weights = fl.bind(personal_at_point, self.head, self.own_model)
        personal = replace(models["personal"], weights=weights)
        return models | {"personal": personal, "shared": models["personal"]}


def take_part(context: fl.Context) -> fl.Tree:
    """Write down that the client has trained a personal model."""
    return {PARTICIPATED: torch.ones_like(context.leaves[PARTICIPATED])}


def personal_at_point(context: fl.Context, head: LinearHead, own: PersonalModel) -> fl.Tree:
    """Return v_i at the client's point, or the shared model at the centre of the simplex."""
    leaves, ctx = context.leaves, context.ctx
    model = own(context) | {ENDPOINTS: leaves[V + ENDPOINTS]}
    took_part = leaves[PARTICIPATED]
    chosen = {name: torch.where(took_part, v, leaves[name]) for name, v in model.items()}
    if POINT not in ctx:
        return at_point(context.with_leaves(chosen), head, own.names)
    centre = torch.full_like(ctx[POINT], 1 / len(ctx[POINT]))
    point = torch.where(took_part, ctx[POINT], centre)
    return at_point(context.with_leaves(chosen, {POINT: point}), head, own.names)
