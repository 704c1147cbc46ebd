"""Python runs this file at the start of each process that a test starts, Ray's workers included.

PyTorch, Lightning and TorchMetrics consist of a million objects that stay. Searching them for
garbage while they are imported takes a quarter of the time of the import. `tests/conftest.py` puts
this folder in PYTHONPATH.
"""

import gc

gc.set_threshold(200_000, 10, 10)
