"""Options of commands that are arguments of functions of `fl`, which declare them once.

Name, type, default and description of such an option are those of the argument. They are read from
the source of the function, because importing it would import PyTorch too.
"""

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import flbench
from flbench.cli.aliases import SHORT_FORM
from flbench.cli.parameters import declare, without
from flbench.core.errors import UserError

SEVERAL: Final = "Can be given several times."
METAVARS: Final = {int: "N", float: "X", str: "NAME", Path: "PATH"}


@dataclass(frozen=True)
class Argument:
    """An argument of a public function, as the function declares it.

    Attributes:
        name: Its name.
        kind: Its annotation, such as `int | None`.
        default: Its default; None for a required one.
        about: Its description in the docstring.
    """

    name: str
    kind: ast.expr
    default: Any
    about: str


@dataclass(frozen=True)
class Form:
    """What only the command line has of an option.

    Attributes:
        metavar: What stands for the value in the help text; by default it follows from the type.
        several: Whether the option can be given several times.
        complete: Function from the beginning of a value to the values that begin so.
    """

    metavar: str | None = None
    several: bool = False
    complete: Callable[[str], list[str]] | None = None


@cache
def arguments(function: str) -> Mapping[str, Argument]:
    """Return the arguments of a public function or method by name.

    Args:
        function: Where it is, such as `flbench.api.runs:Run.export`.
    """
    module, _, name = function.partition(":")
    node = _definition(module, name)
    texts = _descriptions(ast.get_docstring(node) or "")
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(plain) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    return {
        one.arg: Argument(
            one.arg,
            one.annotation or ast.Name("Any"),
            None if default is None else ast.literal_eval(default),
            texts.get(one.arg, ""),
        )
        for one, default in zip([*plain, *given.kwonlyargs], defaults, strict=True)
    }


def _definition(module: str, name: str) -> ast.FunctionDef:
    """Return the definition of a function, or of a method such as `Run.export`, unimported."""
    file = Path(flbench.__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    node: ast.AST = ast.parse(file.read_text("utf-8"))
    for part in name.split("."):
        body = ast.iter_child_nodes(node)
        kinds = (ast.ClassDef, ast.FunctionDef)
        node = next(one for one in body if isinstance(one, kinds) and one.name == part)
    assert isinstance(node, ast.FunctionDef)
    return node


def _descriptions(docstring: str) -> dict[str, str]:
    r"""Return the descriptions of arguments by name, from the section `Args` of a docstring.

    >>> _descriptions("Do it.\n\nArgs:\n    trials: Number of\n        trials.\n    out: A path.")
    {'trials': 'Number of trials.', 'out': 'A path.'}
    """
    section = re.search(r"^Args:\n((?: .*\n?|\n)+)", docstring, re.MULTILINE)
    text = section[1] if section else ""
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name: " ".join(about.split()) for name, about in found}


def with_arguments_of(
    function: str, **forms: Form
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Return a decorator that makes options of a command from arguments of a public function.

    The command has a parameter `asked`, which gets their values by the names of the arguments. An
    option that is not given has the default of the argument.

    Args:
        function: Where the function is, such as `flbench.api.tuning:tune`.
        forms: What only the command line has of each option, by the name of the argument, in the
            order of the help text.
    """
    declared = arguments(function)

    def add(command: Callable[..., Any]) -> Callable[..., None]:
        @wraps(command)
        def called(**given: Any) -> None:
            earlier = given.pop("asked", {})
            mine = {name: given.pop(name) for name in forms}
            command(asked=earlier | mine, **given)

        kept = without(command, "asked")
        options = {f"--{hyphened(one)}" for one in forms} | {_option_of(one) for one in kept}
        added = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=declared[name].default or None,
                annotation=_annotation(declared[name], form, options),
            )
            for name, form in forms.items()
        ]
        if any(one.kind is Parameter.KEYWORD_ONLY for one in kept):  # json and the like come last
            first = next(k for k, one in enumerate(kept) if one.kind is Parameter.KEYWORD_ONLY)
            declare(called, [*kept[:first], *added, *kept[first:]])
        else:
            declare(called, [*kept, *added])
        return called

    return add


def _as_path(name: str, given: str | list[str] | None) -> Any:
    """Return the value of an option as a path, or as a list of paths.

    Raises:
        UserError: A path is empty.
    """
    if given is None:
        return None
    if isinstance(given, list):
        return [_as_path(name, one) for one in given]
    if not given:
        raise UserError(f"--{hyphened(name)} is empty. Give a path, or leave the option out.")
    return Path(given)


def hyphened(name: str) -> str:
    """Return the name of an option without its hyphens in front, such as `gpus-per-trial`."""
    return name.replace("_", "-")


def _option_of(parameter: Parameter) -> str:
    return f"--{hyphened(parameter.name.removeprefix(SHORT_FORM))}"


def _annotation(argument: Argument, form: Form, options: Iterable[str]) -> Any:
    """Return the annotation of which Typer makes an option."""
    kind, values = _type(argument.kind)
    about = for_command(argument.about, options)
    if kind is bool:
        return Annotated[bool, typer.Option(f"--{hyphened(argument.name)}", help=about)]
    several = form.several
    complete = form.complete
    option = typer.Option(
        f"--{hyphened(argument.name)}",
        metavar=form.metavar or "|".join(values) or METAVARS[kind],
        help=f"{about} {SEVERAL}" if several else about,
        show_default=bool(argument.default),
        callback=(lambda given: _as_path(argument.name, given)) if kind is Path else None,
        autocompletion=None if complete is None else (lambda incomplete: complete(incomplete)),
    )
    one: Any = str if kind is Path else kind  # an empty text would become the current folder
    taken: Any = list[one] if several else one
    return Annotated[taken if argument.default else taken | None, option]


def _type(annotation: ast.expr) -> tuple[type, tuple[str, ...]]:
    """Return the type of an option, and the values that it can have if they are listed.

    >>> _type(ast.parse("str | PathLike[str] | None", mode="eval").body)
    (<class 'pathlib.Path'>, ())
    >>> _type(ast.parse("Literal['asha', 'none'] | None", mode="eval").body)
    (<class 'str'>, ('asha', 'none'))
    """
    text = ast.unparse(annotation)
    if text.startswith("Literal["):
        return str, tuple(ast.literal_eval(text[len("Literal") : text.index("]") + 1]))
    if "PathLike" in text:
        return Path, ()
    kinds = (("str", str), ("bool", bool), ("int", int), ("float", float))
    return next(kind for name, kind in kinds if re.search(rf"\b{name}\b", text)), ()


def for_command(about: str, options: Iterable[str]) -> str:
    """Return the description of an argument as the help text of an option.

    Names of arguments become names of options, and values of Python are written as the command
    line takes them.

    Args:
        about: The description.
        options: The options of the command, such as `--tuned`.

    >>> for_command("Whether to use `grid`, such as `{'seed': [0, 1]}` or `None`.", ["--grid"])
    'Use --grid, such as seed=0,1 or null.'
    """
    known = set(options)

    def written(found: re.Match[str]) -> str:
        option = f"--{hyphened(found[1])}"
        return option if option in known else _value(found[1])

    text = re.sub(r"`([^`]+)`", written, about)
    rest = text.removeprefix("Whether to ")
    return text if rest == text else rest[:1].upper() + rest[1:]


def _value(text: str) -> str:
    """Return a value of Python as the command line takes it; another text as it is."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    if isinstance(value, dict):
        return " ".join(f"{key}={','.join(map(str, some))}" for key, some in value.items())
    return {None: "null", True: "true", False: "false"}.get(value, str(value))
