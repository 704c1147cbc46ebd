"""Methods with terms on features, on a user's LightningModule, beside loops written by hand."""

import copy

import lightning
import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

import flbench as fl

CLIENTS, ROUNDS, EPOCHS, BATCH = 2, 2, 2, 16
DOUBLE = {"name": "sequential", "precision": "64-true", "threads": 1}


class Smooth(lightning.LightningModule):
    """Label smoothing, dropout, and Adam with a scheduler by step."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Dropout(0.2))
        self.body2 = nn.Linear(12, 8)
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(self.body2(self.body(x)))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return cross_entropy(self(x), y, label_smoothing=0.1)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def recording(kind, seen):
    class Recorded(kind):
        def training_step(self, batch, batch_idx):
            state = torch.get_rng_state()
            seen.append((self.global_step, (state, *(tensor.clone() for tensor in batch))))
            return super().training_step(batch, batch_idx)

    return Recorded


def made(kind):
    torch.manual_seed(0)
    return kind()


def trained(out, method, kind=Smooth, count=CLIENTS):
    """Return a run, and of each round and client the batches, with the state of the generator."""
    seen = []
    train = {"rounds": ROUNDS, "local_epochs": EPOCHS, "batch_size": BATCH}
    run = fl.federate(
        made(recording(kind, seen)),
        "digits",
        method,
        train=train,
        engine=DOUBLE,
        output={"dir": out},
        progress=False,
        partition=fl.IID(clients=count, samples=50 * count),
    )
    parts = []
    for step, record in seen:
        parts += [[]] if step == 0 else []
        parts[-1].append(record)
    parts = parts[-ROUNDS * count :]  # the first ones were tried before the run
    return run, [parts[k : k + count] for k in range(0, len(parts), count)]


def fit(module, batches, extra):
    """Train as a Trainer does; `extra(x, y, z)` is added to the module's loss."""
    module.train()
    kept = []
    handle = module.fc.register_forward_hook(lambda _, inputs, out: kept.append(inputs[0]))
    [optimizer], [schedule] = module.configure_optimizers()
    for state, x, y in batches:
        kept.clear()
        torch.set_rng_state(state)
        loss = module.training_step((x, y), 0)
        loss = loss + extra(x, y, kept[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule["scheduler"].step()
    handle.remove()
    return module.eval()


def features(module, x):
    return module.body2(module.body(x))


def class_means(module, batches):
    """Return the mean feature of each class that the client has, and its number of samples."""
    epoch = batches[: len(batches) // EPOCHS]
    x, y = (torch.cat([batch[place] for batch in epoch]) for place in (1, 2))
    with torch.no_grad():
        z = features(module, x)
    return {int(k): (z[y == k].mean(0), int((y == k).sum())) for k in y.unique()}


def cos(a, b):
    return cosine_similarity(a, b, dim=-1)


def no_terms(*_):
    return 0.0


def by_fedproto(start, rounds, lam):
    models, table = [copy.deepcopy(start) for _ in range(CLIENTS)], {}

    def pull(x, y, z):
        found = [(z[j] - table[int(k)]).square().mean() for j, k in enumerate(y) if int(k) in table]
        return lam * torch.stack(found).mean() if found else 0.0

    for batches in rounds:
        models = [fit(model, own, pull) for model, own in zip(models, batches, strict=True)]
        means = [class_means(model, own) for model, own in zip(models, batches, strict=True)]
        table = {
            k: torch.stack([own[k][0] for own in means if k in own]).mean(0)
            for k in sorted(set().union(*means))
        }
    return models


def by_moon(start, rounds, mu, tau):
    shared, last = start, [None] * CLIENTS
    for batches in rounds:
        models = []
        for client, own in enumerate(batches):
            before = last[client] or copy.deepcopy(shared)
            received = copy.deepcopy(shared).eval()

            def contrast(x, y, z, received=received, before=before):
                with torch.no_grad():
                    z_g, z_p = features(received, x), features(before.eval(), x)
                e_g, e_p = (torch.exp(cos(z, one) / tau) for one in (z_g, z_p))
                return mu * -torch.log(e_g / (e_g + e_p)).mean()

            models.append(fit(copy.deepcopy(shared), own, contrast))
        last = models
        sizes = [sum(len(batch[2]) for batch in own) for own in batches]
        shared = copy.deepcopy(shared)
        with torch.no_grad():
            for name, leaf in shared.named_parameters():
                every = [
                    n * model.get_parameter(name) for n, model in zip(sizes, models, strict=True)
                ]
                leaf.copy_(sum(every) / sum(sizes))
    return [shared] * CLIENTS


BY_HAND = {
    "fedproto": ({"lam": 0.7}, by_fedproto, {"lam": 0.7}),
    "moon": ({"mu": 2.0, "tau": 0.4}, by_moon, {"mu": 2.0, "tau": 0.4}),
}


@pytest.mark.parametrize("method", BY_HAND)
@pytest.mark.slow
def test_terms_equal_those_of_a_loop_written_by_hand(tmp_path, method):
    """Two rounds: in the second one the server's prototypes and last models are there."""
    keys, by_hand, arguments = BY_HAND[method]
    run, rounds = trained(tmp_path, {"name": method, **keys})
    start = made(Smooth).double()
    expected = by_hand(start, rounds, **arguments)
    plain = [fit(made(Smooth).double(), own, no_terms) for own in rounds[0]]
    plain = [fit(model, own, no_terms) for model, own in zip(plain, rounds[1], strict=True)]

    for client, module in enumerate(expected):
        found = run.model(client=client, checkpoint="last").net.module
        for name, leaf in module.named_parameters():
            torch.testing.assert_close(found.get_parameter(name), leaf, rtol=0, atol=1e-12)
        # The terms matter: training without them gives other weights.
        difference = (found.body2.weight - plain[client].body2.weight).abs().max()
        assert float(difference.detach()) > 1e-6


@pytest.mark.slow
def test_a_weight_of_zero_gives_the_weights_of_a_trainer_bit_for_bit(tmp_path):
    run, rounds = trained(tmp_path, {"name": "hfcd", "lambda0": 0.0}, count=1)
    reference = made(Smooth).double()
    for [own] in rounds:
        fit(reference, own, no_terms)

    found = run.model(client=0, checkpoint="last").net.module
    for name, leaf in reference.named_parameters():
        assert torch.equal(found.get_parameter(name), leaf), name


def halves(self, batch, batch_idx):
    x, y = batch
    return sum(cross_entropy(self(x[k::2]), y[k::2]) for k in (0, 1))


def test_a_head_that_is_never_called_with_all_samples_has_no_features(tmp_path):
    kind = type("Halves", (Smooth,), {"training_step": halves})
    with pytest.raises(fl.ConfigError, match=r"`fc`.*head="):
        trained(tmp_path, {"name": "fedproto"}, kind)
