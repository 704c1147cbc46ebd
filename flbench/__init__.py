"""flbench compares personalized federated learning methods on non-IID data.

Importing this package costs nothing: the rooms (`flbench.experiment`, `flbench.algorithms`, ...)
are imported where they are used.
"""

__version__ = "0.1.0"
