"""FedAS: bodies aligned to the client's own features, averaged by Fisher traces (Yang et al.)."""

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.batchnorm import reestimate_batchnorm, weights_of_trained
from flbench.algorithms.shared.gradients import summed_gradient
from flbench.algorithms.shared.second import LastModel, Second
from flbench.losses import CrossEntropy
from flbench.losses.similarity import class_sums

OWN = "own."  # prefix of the client's model after its last participation
FISHER = "fisher"  # F_i [], what a client sends beside its body


@fl.ALGORITHMS.register("fedas")
class FedAS(fl.Algorithm):
    """The received body is pulled to the client's own old features before it is trained.

    Heads are personal. Client i, with the received body phi and its own model after its last
    participation, (phi_o, h_o):

        1. p_c   = mean of phi_o(x) over the client's samples of class c              eval mode
        2. phi: one epoch of plain SGD at `align_lr` on
           sum over classes c of a batch of (mean over its samples of c of
           (1 / D) ||phi(x) - p_c||^2)
        3. theta = (phi, h_o): the epochs of `train.*` on cross entropy
        4. F_i   = sum over batches of ||gradient of the batch's mean cross entropy at theta||^2,
           over all parameters, one epoch of batches of `train.batch_size`, in eval mode

    Server: phi <- sum_i F_i phi_i / sum_i F_i over the cohort; n_i does not enter. If all F_i are
    zero, the mean is uniform. `personal` is the stored model of the last participation, as the
    authors evaluate it; a client without one has the newest body and the initial head. There is no
    global model.

    Readings. In the authors' code every client aligns the server's own model in place, so that each
    client starts from what those before it have done; here each starts from a copy, as in the
    paper. In its first participation a client aligns to the features of the initial net. The loss
    of the alignment is not divided by the number of classes in a batch. F_i is the sum over
    batches, as in that code: it grows with the number of batches and falls with their size, and it
    is smallest for clients whose training has converged. Its batches are drawn like those of the
    training, with `train.batch_size` samples and the last one as `train.last_batch` has it; in the
    code they are the client's samples in order, 16 at a time, without the last batch. Deviations:
    the aligned body is in train mode, where the code's is in eval mode from the second round on;
    batches of the alignment have `train.batch_size` samples (both are 16 in the authors' command);
    heads are not sent, because nobody reads them. Alignment has no momentum, weight decay or
    clipping. F_i is computed in a phase with a learning rate of 0: the logged training loss and
    number of steps are over the phases of alignment, training and F_i.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedAS."""

        align_lr: float = Field(
            0.01,
            ge=0,
            description="learning rate of the alignment, plain SGD; train.schedule scales it too",
        )

    config: Config
    paper = fl.Paper(
        "FedAS: Bridging Inconsistency in Personalized Federated Learning",
        "Yang, Huang, Ye",
        "CVPR 2024",
    )
    communication = fl.Communication(down="body", up="body, 1 number", keeps="w")
    needs = (fl.BODY,)

    def personal(self) -> frozenset[str]:
        return self.setting.net.names("head")

    @property
    def last(self) -> LastModel:
        """The client's model after its last participation."""
        return LastModel(OWN, self.setting.net.leaves)

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        return server, clients | fl.repeat(self.last.start(start), self.setting.clients)

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        steps = (
            *self.alignment(),
            self.phase(*self.terms()),
            *reestimate_batchnorm(self.setting),
            self.fisher_phase(),
            fl.Transform(write_fisher),
            self.last.copy(),
        )
        return fl.LocalProgram(steps, keeps | self.last.leaves, sends | {FISHER})

    def alignment(self) -> tuple[fl.Step, ...]:
        """Return the steps of the alignment; none with a learning rate of 0."""
        if not self.config.align_lr:
            return ()
        body = frozenset(self.setting.net.parameters) - self.personal()
        classes, sgd = self.setting.classes, plain_sgd(self.config.align_lr)
        old = Second(OWN, self.setting.net.leaves)
        anchors = fl.Statistic("old", fl.bind(old_sums, classes, old), finish=means)
        align = fl.Term(1.0, fl.bind(alignment, classes))
        return (anchors, self.phase(align, train=body, epochs=1, optimizer=sgd, clip=None))

    def fisher_phase(self) -> fl.Phase:
        """Return a phase that changes nothing and records F_i over batches of the usual size."""
        squared = fl.bind(squared_gradient, self.setting.net.parameters)
        trace, sgd = fl.Statistic("trace", squared), plain_sgd(0.0)
        return self.phase(
            CrossEntropy(), epochs=1, optimizer=sgd, clip=None, batchnorm="eval", record=(trace,)
        )

    # Server

    def weights(self, results: fl.Results) -> Tensor:
        """Return the weight F_i of each client's body, [K] float64."""
        weights = weights_of_trained(super().weights(results), self.setting, results)
        traces = torch.where(weights > 0, results.sent.values[FISHER].double(), 0.0)
        usable = bool(traces.sum() > 0) and bool(traces.isfinite().all())
        return traces if usable else (weights > 0).double()

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        return {"personal": fl.Deployment(self.dispatch(state, ids), weights=self.last)}


def plain_sgd(lr: float) -> fl.OptimizerConfig:
    """Return SGD without momentum and weight decay."""
    return fl.OptimizerConfig(name="sgd", lr=lr, momentum=0.0, nesterov=False, weight_decay=0.0)


def old_sums(context: fl.Context, classes: int, old: Second) -> fl.Tree:
    """Return sums of the old body's features by class: `sums` [C, D] float64 and `counts` [C]."""
    batch = context.batch
    features = context.apply(old(context), batch.x).features.double()
    sums, counts = class_sums(features, batch.y, classes, batch.mask)
    return {"sums": sums, "counts": counts}


def means(context: fl.Context, sums: fl.Tree) -> fl.Tree:
    """Return the class means `means` [C, D]; zero for classes without samples."""
    return {"means": sums["sums"] / sums["counts"].clamp_min(1.0)[:, None]}


def alignment(context: fl.Context, classes: int) -> Tensor:
    """Return the sum over the classes of a batch of the distance to the class's old mean, 0-dim.

    The squared distance is a mean over the D numbers of the features and over the batch's samples
    of the class.
    """
    features, batch = context.out.features, context.batch
    anchors = context.ctx["old.means"].to(features.dtype)[batch.y]  # [B, D]
    distance = (features - anchors).square().mean(dim=1)  # [B]
    sums, counts = class_sums(distance[:, None], batch.y, classes, batch.mask)
    return (sums[:, 0] / counts.clamp_min(1.0)).sum()


def squared_gradient(context: fl.Context, names: tuple[str, ...]) -> fl.Tree:
    """Return `sum` [] float64: ||gradient of the batch's mean cross entropy||^2."""
    leaves = {name: value.detach() for name, value in context.leaves.items()}
    gradient = summed_gradient(context, fl.only(leaves, names), lambda some: leaves | some)
    squares = torch.stack([part.double().square().sum() for part in gradient.values()]).sum()
    return {"sum": squares / context.batch.mask.sum().clamp_min(1).double().square()}


def write_fisher(context: fl.Context) -> fl.Tree:
    """Write F_i [] into the leaf that is sent, in the type of the weights."""
    return {FISHER: context.ctx["trace.sum"].to(context.info.lr.dtype)}
