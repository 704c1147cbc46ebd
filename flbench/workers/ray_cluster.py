"""The Ray cluster of a study or of a comparison, and what its nodes have."""

import ray

from flbench.core.errors import ConfigError
from flbench.workers import actor_pool
from flbench.workers.nesting import is_elsewhere
from flbench.workers.ray_driver import RayDriver
from flbench.workers.ray_resources import Resources


def cluster(resources: Resources) -> RayDriver:
    """Return the driver of a Ray cluster, which is started here if it has no address.

    Args:
        resources: Resources of all trainings.

    Raises:
        ConfigError: No cluster answers at the address, or no node has the resources of one
            training.
    """
    # A local cluster declares as many cores as the trainings at once need, which limits them.
    cpus = resources.concurrent * resources.cpus
    driver = RayDriver(resources.address, key="`address`", cpus=cpus)
    try:
        driver.call(check, resources)
    except BaseException:
        driver.close()
        raise
    return driver


def check(resources: Resources) -> None:
    """Raise a ConfigError if no node has the resources of a training: Ray would wait forever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    needs = {"CPU": float(resources.cpus), "GPU": resources.gpus}
    if resources.engine.name == "ray":  # workers may run on any node, each with its own GPU
        nodes = [ray.cluster_resources()]
        needs["CPU"] = float(workers_of(resources))
        needs["GPU"] *= needs["CPU"]
    if not any(all(node.get(key, 0.0) >= needs[key] for key in needs) for node in nodes):
        there = "; ".join(
            actor_pool.amounts({key: node.get(key, 0.0) for key in needs}) for node in nodes
        )
        raise ConfigError(
            f"a {resources.kind} needs {actor_pool.amounts(needs)}, but the nodes of Ray have"
            f" {there}. Lower {' or '.join(resources.keys)}."
        )


def workers_of(resources: Resources) -> int:
    """Return how many workers of its own each training has, with `engine.name=ray`.

    On a cluster with an address these are at most as many as it has CPUs or GPUs, because it may
    have lost nodes since the trainings began, and the results do not depend on it.

    Args:
        resources: Resources of all trainings.
    """
    if not is_elsewhere(resources.address):
        return resources.cpus
    key = "GPU" if resources.gpus else "CPU"
    return max(1, min(resources.cpus, int(actor_pool.there([key])[key])))


def device_there(device: str, address: str | None, key: str = "`engine.address`") -> str:
    """Return the device of trainings on the nodes of a cluster, which this process need not have.

    Ray assigns GPUs to worker processes. Each sees its own as the first, and checks that it exists.

    Args:
        device: `engine.device`; `auto` is a GPU if a node has one.
        address: Address of the cluster; it is not used if this process is connected to one.
        key: The key or option of the address, as error messages write it.

    Raises:
        ConfigError: No cluster answers at the address.
    """
    if device != "auto":
        return device.partition(":")[0]
    with RayDriver(address, key=key) as driver:
        return "cuda" if driver.call(actor_pool.there, ["GPU"])["GPU"] else "cpu"
