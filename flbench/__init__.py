"""flbench compares personalized federated learning methods on non-IID data.

The import of this package is light: its subpackages (`flbench.experiment`, `flbench.algorithms`,
...) load PyTorch and other libraries when they are imported.
"""

__version__ = "0.1.0"
