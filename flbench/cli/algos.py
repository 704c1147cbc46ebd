"""`flbench algos`: the methods, or one of them in detail."""

from flbench.algorithms import catalogue
from flbench.cli import console, tables


def algos(name: str | None, *, as_json: bool) -> None:
    """List the methods, or describe the method `name`."""
    if name is None:
        methods = catalogue.methods()
        console.json(methods) if as_json else tables.print_methods(methods)
    else:
        method = catalogue.method(name)
        console.json(method) if as_json else tables.print_method(method)
