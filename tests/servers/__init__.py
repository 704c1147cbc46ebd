"""Faults of real servers: `make test-servers`. Neither `make test` nor CI runs these tests.

What is run, on this machine alone and as root:

- MLflow, with files that it serves from a folder, or that clients send to a server of S3
  themselves (`server.py`);
- a proxy before MLflow and one before S3, which refuse, delay and cut requests by plan
  (`proxy.py`);
- two nodes of a Ray cluster in two network namespaces with addresses of their own (`nodes.py`).

`faults.py` has the faults. One test (`test_faults.py`) goes through it: a study, comparison or run
is trained during the fault, and `flbench sync` is called after it. MLflow then has exactly what it
has of an undisturbed twin, the weights of all models equal the twin's, a second `flbench sync`
sends nothing, and the command is never silent for more than 30 seconds. The rows that are printed
at the end belong into the table of `docs/servers.md`, in place of earlier rows of the same faults.

`python -m tests.servers` installs the server of S3 into `.servers`, an environment that also has
the packages of the tests' own. Then it runs the tests in namespaces of their own for processes,
network, mounts and shared memory. When the first process of these namespaces ends, also after
Ctrl-C or `kill -9`, the kernel ends every other one and removes what was mounted. Arguments are
passed on to pytest: `python -m tests.servers -k cluster`.
"""

from typing import Final

VARIABLE: Final = "FLBENCH_TEST_SERVERS"
"""Environment variable that `python -m tests.servers` sets in the namespaces of the tests."""
