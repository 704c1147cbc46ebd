"""The data sets that flbench knows by name. The import loads no PyTorch."""

from flbench.data import torchvision_sets
from flbench.data.dataset import KnownDataset


def known() -> dict[str, KnownDataset]:
    """Return the data sets that flbench knows, by name, in the order in which they are listed."""
    sets = {
        "digits": KnownDataset(
            "scikit-learn's digits, 8x8", 10, (1, 8, 8), "comes with scikit-learn"
        )
    }
    sets |= torchvision_sets.known()
    file = "a file that you make: NPZ, or a folder or .zip of images"
    sets["cinic10"] = KnownDataset(
        "CINIC-10 (give its train and test parts)", 10, (3, 32, 32), file
    )
    sets["tinyimagenet"] = KnownDataset("Tiny-ImageNet-200", 200, (3, 64, 64), file)
    sets["organamnist"] = KnownDataset(
        "OrganAMNIST of MedMNIST (MedMNISTA)", 11, (1, 28, 28), "MedMNIST's organamnist.npz"
    )
    return sets
