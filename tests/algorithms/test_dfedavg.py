import torch

from flbench.models.base import net_leaves
from flbench.testing import after
from tests.support import build

ALONE = ("algorithm.topology=erdos_renyi", "algorithm.edge_probability=0")


def test_local_steps_are_those_of_the_heavy_ball_formula():
    """y^{k+1} = y^k - eta g(y^k) + theta (y^k - y^{k-1}), y^{-1} = y^0, anew in each round.

    Full batches; without neighbours, so that the second round goes on from the first.
    """
    keys = ("train.batch_size=1024", "train.local_epochs=4", "engine.precision=64-true")
    built = build("algorithm=dfedavgm", "algorithm.theta=0.8", *ALONE, *keys)

    state = after(built, 2)

    federation = built.federation.to(torch.device("cpu"), torch.float64)
    for client, rows in enumerate(federation.partition.parts["train"]):
        net = build(*keys).net.double()
        x, y = federation.inputs(rows, torch.float64), federation.y[torch.from_numpy(rows)]
        leaves = net_leaves(net)
        for _ in range(2):
            last = {name: leaf.detach().clone() for name, leaf in leaves.items()}
            for _ in range(4):
                net.zero_grad()
                torch.nn.functional.cross_entropy(net(x).logits, y).backward()
                for name, leaf in leaves.items():
                    here = leaf.detach().clone()
                    leaf.data = here - 0.01 * leaf.grad + 0.8 * (here - last[name])
                    last[name] = here
        for name, leaf in leaves.items():
            assert torch.allclose(state.clients[name][client], leaf.data, rtol=0, atol=1e-12), name
