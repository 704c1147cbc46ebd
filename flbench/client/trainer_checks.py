"""Checks that Lightning's Trainer trains a phase as the engines do."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from flbench.client.program import Phase
from flbench.core.lightning import Trainer
from flbench.core.types import Samples, Tree


def check_trainer(
    trainer: Trainer, phase: Phase, net: nn.Module, leaves: Tree, start: Tree, ctx: Tree
) -> None:
    """Raise a ValueError for everything that would make a Trainer's weights differ.

    Args:
        trainer: The Trainer, with its data loader attached.
        phase: The phase that it is about to train.
        net: The client's net, on the Trainer's device and in its precision.
        leaves: The client's parameters and buffers, and the tensors that the method adds.
        start: The same at the beginning of the local program.
        ctx: What the server sent and what Statistics computed.
    """
    reasons = [
        *_limits(trainer, phase),
        *_arithmetic(trainer, phase),
        *_samples(trainer, phase),
        *_tensors(net, leaves, start, ctx),
    ]
    if reasons:
        listed = "".join(f"\n- {reason}" for reason in reasons)
        raise ValueError(
            f"lightning.Trainer would not train this phase as flbench's engines do:{listed}"
        )


def _limits(trainer: Trainer, phase: Phase) -> Iterator[str]:
    """Yield limits of the Trainer that are not the phase's `epochs` or `steps`."""
    wanted = (phase.epochs, -1) if phase.epochs is not None else (-1, phase.steps)
    if (trainer.max_epochs, trainer.max_steps) != wanted:
        yield (
            f"the phase has epochs={phase.epochs} and steps={phase.steps}, the Trainer"
            f" max_epochs={trainer.max_epochs} and max_steps={trainer.max_steps}. Use"
            f" Trainer(max_epochs={wanted[0]}, max_steps={wanted[1]})."
        )
    if trainer.limit_train_batches != 1.0:
        yield (
            f"limit_train_batches={trainer.limit_train_batches} (or overfit_batches) leaves out"
            " batches. Use `Phase.steps` or `Phase.samples`."
        )


def _arithmetic(trainer: Trainer, phase: Phase) -> Iterator[str]:
    """Yield settings of the Trainer that change gradients or the number of optimizer steps."""
    if trainer.gradient_clip_val is not None:
        yield f"gradient_clip_val={trainer.gradient_clip_val}. Use `Phase.clip`."
    if trainer.accumulate_grad_batches != 1:
        yield (
            f"accumulate_grad_batches={trainer.accumulate_grad_batches}: a phase takes one"
            " optimizer step per batch. Use a larger batch size."
        )
    if trainer.world_size != 1:
        yield f"{trainer.world_size} processes would average their gradients. Use devices=1."
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        hook = " and `Phase.gradient` does not pass through it" if phase.gradient else ""
        yield (
            "precision=16-mixed: the engine starts each client with a loss scaler of its own"
            f"{hook}. Use bf16-mixed or 32-true, or engine.name=sequential."
        )


def _samples(trainer: Trainer, phase: Phase) -> Iterator[str]:
    """Yield a reason if the phase reads a part of the samples that the loader does not declare."""
    loader: Any = trainer.train_dataloader
    declared = getattr(
        loader, "samples", getattr(getattr(loader, "dataset", None), "samples", None)
    )
    if declared != phase.samples and (declared is not None or phase.samples != Samples()):
        yield (
            f"the phase reads {phase.samples}, the data loader {declared or 'does not say which'}."
            " Use flbench.engine.client_batches.ClientBatches of this phase."
        )


def _tensors(net: nn.Module, leaves: Tree, start: Tree, ctx: Tree) -> Iterator[str]:
    """Yield tensors that were copied or left behind when the Trainer moved or cast the net."""
    own = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    copies = [name for name, tensor in own.items() if leaves.get(name) is not tensor]
    if copies:
        yield (
            f"the parameters and buffers {copies} are not the net's own tensors (a Trainer replaces"
            " buffers when it moves or casts a net). Move and cast the net first, then take them"
            " from it with flbench.models.base.net_leaves."
        )
    reference = next(iter(own.values()))
    for place, tree in (("leaves", leaves), ("start", start), ("ctx", ctx)):
        for name, value in tree.items():
            if value.device != reference.device:
                yield (
                    f"{place}[{name!r}] is on {value.device}, the net on {reference.device}. Move"
                    " it first."
                )
            elif place == "start" and name in own and value.dtype != own[name].dtype:
                yield f"start[{name!r}] is {value.dtype}, the net's is {own[name].dtype}. Cast it."
