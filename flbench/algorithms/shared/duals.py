"""The dual variables of a client, one for each parameter."""

from dataclasses import dataclass

from flbench.core.types import Info, Tree

DUAL = "dual."  # before a parameter's name: h_i; of the server: the mean of all


@dataclass(frozen=True)
class MoveDual:
    """h <- h + w - w_start."""

    names: tuple[str, ...]

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return the dual."""
        return {DUAL + n: leaves[DUAL + n] + (leaves[n] - start[n]) for n in self.names}
