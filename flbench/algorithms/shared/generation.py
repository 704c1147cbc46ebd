"""The hypernetwork as a plug-in: any decentralised method then mixes (phi, z), not weights.

What the method would mix is generated, but for what `private` leaves with the clients; a phase that
would train it becomes three, with an optimiser each: v (the private part), phi, z.

Source: Li et al. (DFedHP), IJCAI 2025, Algorithm 1.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import Field

from flbench.algorithms.shared.hypernetwork import LEAVES, PHI, Hypernetwork, Write, Z
from flbench.client.program import Phase, Step, Transform
from flbench.config.schema import OptimizerConfig, Strict, TrainConfig
from flbench.core.types import Tree
from flbench.models.base import NetSpec


class HypernetworkConfig(Strict):
    """Keys of methods that are built on the hypernetwork; others plug it in with these defaults."""

    private: Literal["head", "linear", "none"] = Field(
        "head",
        description="what is not generated and stays with the client, besides what the method"
        " itself keeps: the head, all linear layers, or nothing",
    )
    norm_personal: bool = Field(
        False, description="normalisation layers stay with the client too, instead of generated"
    )
    chunk: int = Field(9216, ge=1, description="weights generated from one embedding")
    embedding: int = Field(128, ge=1, description="numbers of an embedding")
    hidden: int = Field(128, ge=1, description="units of the hidden layer")
    unit: Literal["epochs", "steps"] = Field("epochs", description="what k_v, k_phi and k_z count")
    k_v: int = Field(1, ge=0, description="training of the private part v")
    k_phi: int | None = Field(
        None,
        ge=1,
        description="of the hypernetwork phi (default: what k_v and k_z leave of the local epochs,"
        " 2 of 4, at least 1)",
    )
    k_z: int = Field(1, ge=0, description="of the embeddings z")
    lr_v: float | None = Field(
        None, ge=0, description="learning rate of v (default: as the method trains it)"
    )
    lr_phi: float | None = Field(
        None, ge=0, description="learning rate of phi (default: as the method trains weights)"
    )
    lr_z: float | None = Field(
        None, ge=0, description="learning rate of z (default: as the method trains weights)"
    )
    weight_decay_z: float = Field(
        0.0, ge=0, description="weight decay of z, which shrinks embeddings"
    )


@dataclass(frozen=True)
class Generation:
    """What a method keeps, mixes and trains where its shared weights are generated.

    Attributes:
        net: the net's leaves.
        keys: of the hypernetwork.
        kept: leaves of the net that the method keeps.
        shared: leaves of the net that the method mixes.
    """

    net: NetSpec
    keys: HypernetworkConfig
    kept: frozenset[str]
    shared: frozenset[str]

    @cached_property
    def generated(self) -> frozenset[str]:
        """The parameters that the hypernetwork makes."""
        layers = [layer for layer in self.net.layers if layer.kind in ("norm", "batchnorm")]
        norms = frozenset(leaf for layer in layers for leaf in layer.leaves)
        private = self.net.names("head") if self.keys.private != "none" else frozenset()
        if self.keys.private == "linear":
            private |= self.net.names("linear")
        if self.keys.norm_personal:
            private |= norms
        return (self.shared & frozenset(self.net.parameters)) - private

    @property
    def own(self) -> frozenset[str]:
        """The parameters v that the client keeps."""
        return (frozenset(self.net.parameters) & (self.kept | self.shared)) - self.generated

    @cached_property
    def hypernetwork(self) -> Hypernetwork:
        """What the net is called with."""
        keys = self.keys
        return Hypernetwork.of(
            self.net,
            self.generated,
            chunk=keys.chunk,
            embedding=keys.embedding,
            hidden=keys.hidden,
        )

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return what clients keep and what they mix: (phi, z) instead of weights.

        BatchNorm's statistics stay with the client: of generated weights there is no mean that
        averaged statistics would belong to.
        """
        return (self.kept | self.shared) - self.generated, LEAVES

    def leaves(self, start: Tree, rng: np.random.Generator) -> Tree:
        """Return the seeded net's leaves, and phi and z, the same for all clients."""
        return start | self.hypernetwork.initial(start, rng)

    def steps(
        self, steps: tuple[Step, ...], weights: Callable[[Tree, Tree], Tree]
    ) -> tuple[Step, ...]:
        """Return a method's steps with v, phi and z trained in the place of its weights.

        Training of v sees an ordinary net, into whose leaves the weights were written: they are
        generated once; that of phi and z generates them in each step, with the gradient through h.
        Steps that do not train stay as they are.

        Args:
            steps: of the method.
            weights: (leaves, ctx) -> what the net is called with.
        """
        write = Transform(Write(weights, tuple(name for name, _ in self.hypernetwork.tensors)))
        done: list[Step] = []
        stale = True
        for step in steps:
            plain, generating = self._apart(step)
            if stale and any(isinstance(part, Phase) for part in plain):
                done.append(write)
                stale = False
            done += [*plain, *generating]
            stale = stale or bool(generating)
        return tuple(done)

    def requires(self) -> list[str]:
        """Return a sentence if there is nothing to generate."""
        if self.generated:
            return []
        return [
            f"the hypernetwork has nothing to generate: with algorithm.private={self.keys.private}"
            f" and algorithm.norm_personal={str(self.keys.norm_personal).lower()} all"
            f" {self.net.size:,} parameters of the net stay with the client. Choose a deeper net,"
            " or keep less private."
        ]

    def notes(self, steps: tuple[Step, ...], train: TrainConfig) -> list[str]:
        """Return what a user may not expect: large messages, many epochs, whose statistics.

        Args:
            steps: that a client does.
            train: how every method trains.
        """
        said = []
        message, size = self.hypernetwork.size(self.net.size), self.net.size
        if message >= size:
            said.append(
                f"a message (phi, z) holds about {message:,} scalars, {message / size:.3g} times"
                f" the {size:,} of the net: the hypernetwork saves traffic for large nets only."
            )
        epochs = sum(step.epochs or 0 for step in steps if isinstance(step, Phase))
        if epochs > train.local_epochs:
            said.append(
                f"v, phi and z are trained for {epochs} epochs in all, more than"
                f" train.local_epochs={train.local_epochs}."
            )
        if self.net.statistics and train.batchnorm == "average":
            said.append(
                "train.batchnorm=average has no effect on generated layers: their statistics stay"
                " with the client."
            )
        return said

    def _apart(self, step: Step) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        """Return what a step is on an ordinary net, and its phases on phi and z."""
        if not isinstance(step, Phase):
            return (step,), ()
        ordinary = replace(step, weights=None)
        if not any(step.trains(name) for name in self.generated):
            return (ordinary,), ()
        keys = self.keys
        own = frozenset(name for name in self.own if step.trains(name))
        k_v = keys.k_v if own else 0
        k_phi = keys.k_phi or max(1, (step.epochs or 0) - k_v - keys.k_z)
        v = self._phase(ordinary, own, k_v, keys.lr_v)
        phi = self._phase(step, PHI, k_phi, keys.lr_phi)
        z = self._phase(step, Z, keys.k_z, keys.lr_z, keys.weight_decay_z)
        return v, (*phi, *z)

    def _phase(
        self,
        step: Phase,
        train: frozenset[str],
        length: int,
        lr: float | None,
        weight_decay: float | None = None,
    ) -> tuple[Phase, ...]:
        """Return a phase on other leaves; none where it is empty."""
        changed: dict[str, float] = {}
        if lr is not None:
            changed["lr"] = lr
        if weight_decay is not None:
            changed["weight_decay"] = weight_decay
        optimizer: OptimizerConfig = step.optimizer.model_copy(update=changed)
        epochs, steps = (length, None) if self.keys.unit == "epochs" else (None, length)
        phase = replace(step, train=train, optimizer=optimizer, epochs=epochs, steps=steps)
        return (phase,) if train and length else ()
