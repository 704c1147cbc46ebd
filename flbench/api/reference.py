"""`fl.help`: what the public names of flbench are, read from the source without importing it.

Signatures and docstrings come from the text of flbench's own files, which an installation has too.
Neither PyTorch nor code of the user is imported, so that the answer is there at once.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from flbench.core.errors import ConfigError, did_you_mean
from flbench.core.text import printable
from flbench.core.wording import listed

ROOT: Final = Path(__file__).resolve().parents[1]
"""The package `flbench`."""
WIDTH: Final = 88  # characters of a signature in one line


@dataclass(frozen=True)
class Topic:
    """A group of public names.

    Attributes:
        title: What the names are for.
        packages: Where they are imported from. A package with `__all__` has the names in it, a
            module the public names that it defines, and `NAME.*` stands for the modules of NAME.
        page: Page of the documentation, below `docs/`.
        page_title: Its title.
    """

    title: str
    packages: tuple[str, ...]
    page: str
    page_title: str


TOPICS: Final = (
    Topic(
        "Scripts and notebooks (import flbench as fl)",
        ("flbench",),
        "guides/python.md",
        "Use flbench from Python",
    ),
    Topic("Callbacks", ("flbench.callbacks",), "guides/callbacks.md", "Callbacks and loggers"),
    Topic("A Tuner of your own", ("flbench.tuning",), "guides/own-tuner.md", "Use your own Tuner"),
    Topic(
        "Methods: what they are made of",
        ("flbench.algorithms",),
        "guides/your-method.md",
        "Write your own method",
    ),
    Topic(
        "Loss terms",
        ("flbench.losses", "flbench.losses.similarity"),
        "guides/your-method.md",
        "Write your own method",
    ),
    Topic(
        "Methods: what several of them share",
        ("flbench.algorithms.shared.*",),
        "guides/your-method.md",
        "Write your own method",
    ),
    Topic(
        "Tests of methods", ("flbench.testing",), "guides/your-method.md", "Write your own method"
    ),
    Topic(
        "Nets", ("flbench.models",), "guides/your-net.md", "Use your own net and data from Python"
    ),
    Topic("Metrics", ("flbench.metrics.*",), "metrics.md", "Metrics"),
)

_COMPARE: Final = ("guides/compare.md", "Compare methods")
_MODEL: Final = ("guides/your-net.md", "Use your own net and data from Python")
PAGES: Final = {
    "ablate": ("guides/ablate.md", "Ablate a method"),
    "compare": _COMPARE,
    "Comparison": _COMPARE,
    "report": _COMPARE,
    "pack": _COMPARE,
    "Data": _MODEL,
    "federate": ("guides/your-lightning-module.md", "Federate your LightningModule"),
    "tune": ("guides/tune.md", "Tune methods"),
    "Callback": ("guides/callbacks.md", "Callbacks and loggers"),
    "EarlyStopping": ("guides/callbacks.md", "Callbacks and loggers"),
    "Scheme": ("guides/your-data.md", "Use your own data"),
}
"""Pages of names of `flbench` that are not on the page of their topic."""

Definition = ast.ClassDef | ast.FunctionDef | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class PublicName:
    """A public name.

    Attributes:
        name: The name, with that of its class if it is a method or an attribute.
        place: Module or package that it is imported from.
        module: Module that defines it.
        node: Its definition; None for a module.
        topic: Its topic; None for a name that belongs to none.
        note: What else to look at.
    """

    name: str
    place: str
    module: str
    node: Definition | None
    topic: Topic | None = None
    note: str = ""


def help(name: Any = None) -> None:
    """Print what a public name of flbench is: its import, signature, docstring and guide.

    Args:
        name: The name, such as `"Dispatch"`, or a dotted one, such as `"testing.run"` or
            `"Algorithm.dispatch"`; the name of a method, net or loss term, such as `"fedprox"`; a
            module, such as `"losses"`; or the class, function or module itself. None prints all
            names by topic.

    Raises:
        ConfigError: There is no such name; the message names a similar one.

    >>> help("IID")  # doctest: +ELLIPSIS
    fl.IID
    ...
    """
    text = _overview() if name is None else _described(_search(_name_of(name)))
    sys.stdout.write(printable(text) + "\n")


def _name_of(given: Any) -> str:
    """Return the name of what the user asks for.

    Raises:
        ConfigError: It is neither a name nor something that flbench defines.
    """
    if isinstance(given, str):
        return given.strip()
    module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", None)
    if inspect.ismodule(given):
        module, name = given.__name__, ""
    if not isinstance(module, str) or module.partition(".")[0] != "flbench" or name is None:
        raise ConfigError(
            f"fl.help knows what flbench defines, got {type(given).__name__}. Give a name, such as"
            ' fl.help("run"), or nothing for a list of all names.'
        )
    return f"{module}.{name}".rstrip(".")


# The names and where they are


@cache
def _tree(module: str) -> ast.Module | None:
    """Return the syntax tree of one of flbench's modules; None if there is no such module."""
    first, *inner = module.split(".")
    if first != "flbench" or not all(part.isidentifier() for part in inner):
        return None
    path = ROOT.joinpath(*inner)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text("utf-8")) if file.is_file() else None


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those under `if TYPE_CHECKING` and `try` included."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from _statements(statement.body)


def _names_defined(statement: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _definition(module: str, name: str) -> tuple[str, Definition] | None:
    """Return the module that defines a name, and the definition; imports are followed."""
    tree = _tree(module)
    for statement in _statements(tree.body) if tree is not None else ():
        if name in _names_defined(statement):
            return module, statement  # type: ignore[return-value]
        # `from flbench import tuning` in flbench itself imports a subpackage.
        if isinstance(statement, ast.ImportFrom) and statement.module not in (None, module):
            for alias in statement.names:
                if name == (alias.asname or alias.name):
                    return _definition(str(statement.module), alias.name)
    return None


def function(module: str, name: str) -> ast.FunctionDef:
    """Return the definition of a function, or of a method such as `Run.export`.

    Args:
        module: The module that defines it.
        name: Its name, with that of its class.
    """
    first, *members = name.split(".")
    found = _definition(module, first)
    node = None if found is None else found[1]
    for member in members:
        node = next(one for one in _members(node) if one.name == member)
    assert isinstance(node, ast.FunctionDef)
    return node


def _public(module: str) -> list[str]:
    """Return the public names of a module: those in `__all__`, or else those that it defines."""
    tree = _tree(module)
    assert tree is not None
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and _names_defined(statement) == ["__all__"]:
            return [name for name in ast.literal_eval(statement.value) if name[0] != "_"]
    defined = (name for one in tree.body for name in _names_defined(one))
    return [name for name in defined if name[0] != "_"]


@cache
def _modules() -> dict[str, Path]:
    """Return the files of all public modules of flbench by name."""
    found = {}
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT.parent).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(part.startswith("_") for part in parts):
            found[".".join(parts)] = file
    return found


def _places(topic: Topic) -> list[str]:
    """Return the modules and packages of a topic."""
    found: list[str] = []
    for package in topic.packages:
        if package.endswith(".*"):
            found += [name for name in _modules() if name.startswith(package[:-1])]
        else:
            found.append(package)
    return found


@cache
def _index() -> dict[str, list[PublicName]]:
    """Return the names of all topics; the first of several equal names is meant by the name."""
    found: dict[str, list[PublicName]] = {}
    for topic in TOPICS:
        for place in _places(topic):
            for name in _public(place):
                if (defined := _definition(place, name)) is not None:
                    entries = found.setdefault(name, [])
                    if all(entry.node is not defined[1] for entry in entries):
                        entries.append(PublicName(name, place, *defined, topic))
    return found


@cache
def _elsewhere() -> dict[str, list[str]]:
    """Return the modules that define each public name, for names that belong to no topic.

    Parsing all files takes a second; their lines are read instead.
    """
    found: dict[str, list[str]] = {}
    pattern = re.compile(r"^(?:class |def )?([A-Za-z]\w*)(?=[:(=]| ?: | = )", re.MULTILINE)
    for module, file in _modules().items():
        for name in dict.fromkeys(pattern.findall(file.read_text("utf-8"))):
            found.setdefault(name, []).append(module)
    return found


@cache
def _registered() -> dict[str, tuple[str, str]]:
    """Return module and class of the methods, nets and loss terms by their registered names."""
    pattern = re.compile(r'^@\w+\.register\("([\w-]+)"\)\n(?:@.*\n)*class (\w+)', re.MULTILINE)
    return {
        name: (module, kind)
        for module, file in _modules().items()
        if module.split(".")[1:2] in (["algorithms"], ["models"], ["losses"])
        for name, kind in pattern.findall(file.read_text("utf-8"))
    }


def _members(node: Definition | None) -> list[ast.FunctionDef]:
    """Return the public methods and properties that a class defines."""
    body = node.body if isinstance(node, ast.ClassDef) else []
    return [one for one in body if isinstance(one, ast.FunctionDef) and one.name[0] != "_"]


def _search(name: str) -> list[PublicName]:
    """Return what has a name; the first is meant, and the others are further ones.

    Raises:
        ConfigError: There is no such name.
    """
    found = _dotted(name) if "." in name else _plain(name)
    if found:
        return found
    known = [*_index(), *_registered(), *_elsewhere()]
    short = name.rpartition(".")[2]
    same = [one for one in known if one.lower() == short.lower()]
    hint = f" Did you mean `{same[0]}`?" if same else did_you_mean(short, known)
    raise ConfigError(f"flbench has no public name `{name}`.{hint} fl.help() lists the names.")


def _plain(name: str) -> list[PublicName]:
    """Return what has a name without dots."""
    index = _index()
    if name in index:
        return index[name]
    if name in (registered := _registered()):
        module, kind = registered[name]
        package = ".".join(module.split(".")[:2])
        topic = next(topic for topic in TOPICS if package in topic.packages)
        is_method = package == "flbench.algorithms"
        note = f"Keys: fl.method({name!r}), or flbench algos {name}" if is_method else ""
        defined = _definition(module, kind)
        return [PublicName(kind, module, *defined, topic, note)] if defined else []
    modules = [one for one in _modules() if one.rpartition(".")[2] == name]
    modules.sort(key=lambda one: one.count("."))
    listed = {place for topic in TOPICS for place in _places(topic)}
    # `names` is a method of `NetSpec` before it is a module of flbench's inside.
    if any(one in listed or one.count(".") == 1 for one in modules):
        return [PublicName("", one, one, None) for one in modules]
    members = [
        PublicName(f"{entry.name}.{name}", entry.place, entry.module, member, entry.topic)
        for entries in index.values()
        for entry in entries
        for member in _members(entry.node)
        if member.name == name
    ]
    if members:
        # `dispatch` is a hook of `Algorithm` before it is a method of any other class.
        return sorted(members, key=lambda one: not one.name.startswith("Algorithm."))
    if modules:
        return [PublicName("", one, one, None) for one in modules]
    places = _elsewhere().get(name, [])
    defined_at = ((place, _definition(place, name)) for place in places)
    return [PublicName(name, place, *defined) for place, defined in defined_at if defined]


def _dotted(name: str) -> list[PublicName]:
    """Return what has a name with dots: modules first, then a name in them, then a member."""
    parts = name.split(".")
    if parts[0] in ("fl", "flbench"):
        parts = parts[1:]
    for length in range(len(parts), -1, -1):
        module = ".".join(["flbench", *parts[:length]])
        if module not in _modules():
            continue
        rest = parts[length:]
        if not rest:
            return [PublicName("", module, module, None)]
        if (defined := _definition(module, rest[0])) is not None:
            return _within(PublicName(rest[0], module, *defined), rest[1:])
    if len(parts) > 1 and (found := _plain(parts[0])):
        return _within(found[0], parts[1:])
    return []


def _within(found: PublicName, members: list[str]) -> list[PublicName]:
    """Return a name, or one of the members of the class that it is."""
    here = (topic for topic in TOPICS if found.place in _places(topic))
    if (topic := next(here, None)) is not None and found.name in _public(found.place):
        found = replace(found, topic=topic)
    else:
        same = (one for one in _index().get(found.name, ()) if one.node is found.node)
        found = next(same, found)
    if not members:
        return [found]
    return [
        PublicName(f"{found.name}.{member.name}", found.place, found.module, member, found.topic)
        for member in _members(found.node)
        if [member.name] == members
    ]


# What is printed


def _overview() -> str:
    """Return all names by topic."""
    parts = ["Names of flbench. fl.help(NAME) describes one of them."]
    listed: set[int] = set()
    for topic in TOPICS:
        lines = [topic.title, f"  guide: {_guide(topic.page, topic.page_title)}"]
        for place in _places(topic):
            mine = [(name, _definition(place, name)) for name in _public(place)]
            names = [name for name, found in mine if found and id(found[1]) not in listed]
            listed |= {id(found[1]) for _, found in mine if found}
            if names:
                lines.append(f"  {place}:")
                text = ", ".join(sorted(names, key=str.lower))
                lines += textwrap.wrap(text, 96, initial_indent="    ", subsequent_indent="    ")
        parts.append("\n".join(lines))
    parts.append(
        "Methods, nets and loss terms have names too, such as fl.help('fedprox'). fl.methods()\n"
        "lists the methods, and fl.method(NAME) the keys of one."
    )
    return "\n\n".join(parts)


def _guide(page: str, title: str) -> str:
    """Return a page of the documentation as it is named to the user."""
    return f'"{title}", docs/{page}'


def _described(found: Sequence[PublicName]) -> str:
    """Return the description of a name, and where its other meanings are."""
    one, *others = found
    if one.node is None:
        return "\n\n".join(_of_module(one.place, others))
    parts = [_title(one), _signature(one)]
    if text := _docstring(one):
        parts.append(text)
    if isinstance(one.node, ast.ClassDef) and (lines := _member_lines(one.node)):
        parts.append("\n".join(["Methods and properties:", *lines]))
    last = [one.note] if one.note else []
    if one.topic is not None:
        topic = one.topic
        own = PAGES.get(one.name.partition(".")[0]) if one.place == "flbench" else None
        last.append(f"Guide: {_guide(*(own or (topic.page, topic.page_title)))}")
    last.append(f"Source: {_file(one.module)}")
    if others:
        last.append(f"Also: {listed((f'{other.place}.{other.name}' for other in others), 8)}")
    return "\n\n".join([*parts, "\n".join(last)])


def _of_module(module: str, others: Sequence[PublicName]) -> list[str]:
    """Return the paragraphs about a module: its docstring, and what is in it."""
    tree = _tree(module)
    assert tree is not None
    parts = [module, ast.get_docstring(tree) or ""]
    names = [name for name in _public(module) if _definition(module, name)]
    inner = [one for one in _modules() if one.rpartition(".")[0] == module]
    for title, found in (("Names", names), ("Modules", inner)):
        if found:
            text = ", ".join(found)
            parts.append(
                textwrap.fill(
                    f"{title}: {text}", 100, subsequent_indent="  ", break_long_words=False
                )
            )
    last = f"Source: {_file(module)}"
    if others:
        last += f"\nAlso: {', '.join(other.place for other in others)}"
    return [part for part in [*parts, last] if part]


def _title(found: PublicName) -> str:
    """Return the line that says how a name is imported."""
    if found.place == "flbench":
        return f"fl.{found.name}"
    first = found.name.partition(".")[0]
    return f"{found.place}.{found.name}\nfrom {found.place} import {first}"


def _file(module: str) -> str:
    """Return the file of a module, from the folder of the package."""
    return _modules()[module].relative_to(ROOT.parent).as_posix()


def _docstring(found: PublicName) -> str:
    """Return the docstring of a name; of a constant, the text below it."""
    node = found.node
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return ast.get_docstring(node) or ""
    tree = _tree(found.module)
    body = list(_statements(tree.body)) if tree is not None else []
    place = next((number for number, one in enumerate(body) if one is node), len(body))
    match body[place + 1 : place + 2]:
        case [ast.Expr(value=ast.Constant(value=str() as text))]:
            return inspect.cleandoc(text)
    return ""


def _member_lines(node: ast.ClassDef) -> list[str]:
    """Return a line for each public method: how it is called, and its first sentence."""
    lines = []
    for member in _members(node):
        first = (ast.get_docstring(member) or "").partition("\n\n")[0].replace("\n", " ")
        call = member.name
        if not _is_property(member):
            call += f"({', '.join(_parameter_names(member))})"
        lines.append(f"  {call}" + (f": {first}" if first else ""))
    return lines


def _is_property(node: ast.FunctionDef) -> bool:
    """Return whether a method is read like an attribute."""
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def _is_bound(node: ast.FunctionDef) -> bool:
    """Return whether the first parameter of a method is given by Python."""
    return not any(ast.unparse(one) == "staticmethod" for one in node.decorator_list)


def _parameter_names(node: ast.FunctionDef) -> list[str]:
    """Return the names of a method's parameters, without `self`."""
    given = [one.arg for one in [*node.args.posonlyargs, *node.args.args]][_is_bound(node) :]
    return given + [one.arg for one in node.args.kwonlyargs]


def _signature(found: PublicName) -> str:
    """Return how something is called; of a constant, its value."""
    node, name = found.node, found.name
    if isinstance(node, ast.FunctionDef):
        is_member = "." in name
        if is_member and _is_property(node):
            returns = f": {ast.unparse(node.returns)}" if node.returns else ""
            return f"{node.name}{returns}"
        given = _parameters(node.args)[is_member and _is_bound(node) :]
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return _call(f"def {node.name}", given, returns)
    if isinstance(node, ast.ClassDef):
        shown = [ast.unparse(base) for base in node.bases if ast.unparse(base) != "NamedTuple"]
        after = f"\nBases: {', '.join(shown)}" if shown else ""
        fields = _fields(node, found.module)
        begin = f"class {node.name}"
        return (begin if fields is None else _call(begin, fields, "")) + after
    text = ast.unparse(node) if node is not None else ""
    return text if len(text) <= 2 * WIDTH else f"{text[: 2 * WIDTH]} ..."


def _call(begin: str, given: Sequence[str], end: str) -> str:
    """Return a signature in one line, or with a line for each parameter."""
    line = f"{begin}({', '.join(given)}){end}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{begin}(", *(f"    {one}," for one in given), f"){end}"])


def _parameters(arguments: ast.arguments) -> list[str]:
    """Return the parameters of a function as they are written."""
    found: list[str] = []
    plain = [*arguments.posonlyargs, *arguments.args]
    without = len(plain) - len(arguments.defaults)
    for number, one in enumerate(plain):
        default = arguments.defaults[number - without] if number >= without else None
        found.append(_parameter(one, default))
        if number + 1 == len(arguments.posonlyargs):
            found.append("/")
    if arguments.vararg:
        found.append(f"*{_parameter(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        found.append("*")
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(_parameter(one, default))
    if arguments.kwarg:
        found.append(f"**{_parameter(arguments.kwarg, None)}")
    return found


def _parameter(one: ast.arg, default: ast.expr | None) -> str:
    """Return a parameter with its type and its default."""
    kind = f": {ast.unparse(one.annotation)}" if one.annotation else ""
    if default is None:
        return f"{one.arg}{kind}"
    return (
        f"{one.arg}{kind} = {ast.unparse(default)}" if kind else f"{one.arg}={ast.unparse(default)}"
    )


def _fields(node: ast.ClassDef, module: str) -> list[str] | None:
    """Return what a class is called with: the parameters of `__init__`, or its fields.

    Args:
        node: The class.
        module: The module that defines it, in which its bases are looked up.

    Returns:
        The parameters, without `self`; None if they are not known.
    """
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            return _parameters(one.args)[1:]
    inherited: list[str] | None = None
    for base in node.bases:
        defined = _definition(module, ast.unparse(base))
        if defined is not None and isinstance(defined[1], ast.ClassDef) and inherited is None:
            inherited = _fields(defined[1], defined[0])
    if not _is_record(node, module):
        return inherited
    number = inherited.index("*") if inherited and "*" in inherited else len(inherited or ())
    plain = {one.partition(":")[0]: one for one in (inherited or [])[:number]}
    by_name = {one.partition(":")[0]: one for one in (inherited or [])[number + 1 :]}
    is_by_name = any("kw_only=True" in ast.unparse(one) for one in node.decorator_list)
    for one in node.body:
        if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
            continue
        kind, name = ast.unparse(one.annotation), one.target.id
        is_by_name = is_by_name or kind == "KW_ONLY"
        if not kind.startswith("ClassVar") and name[0] != "_":
            default = None if one.value is None else _default(one.value)
            field = f"{name}: {kind}" + ("" if default is None else f" = {default}")
            is_placed = one.value is not None and "kw_only=False" in ast.unparse(one.value)
            if name in by_name or (is_by_name and not is_placed and name not in plain):
                by_name[name] = field
            else:
                plain[name] = field
    return [*plain.values(), *(["*"] if by_name else []), *by_name.values()]


def _is_record(node: ast.ClassDef, module: str) -> bool:
    """Return whether the fields of a class are what it is called with."""
    decorators = [ast.unparse(one) for one in node.decorator_list]
    if any(one.partition("(")[0] == "dataclass" for one in decorators):
        return True
    for base in map(ast.unparse, node.bases):
        if base in ("NamedTuple", "BaseModel"):
            return True
        defined = _definition(module, base)
        # A subclass of a model of pydantic is one too; a subclass of a dataclass need not be.
        if defined is not None and isinstance(defined[1], ast.ClassDef):
            is_plain = not defined[1].decorator_list
            if is_plain and _is_record(defined[1], defined[0]):
                return True
    return False


def _default(value: ast.expr) -> str | None:
    """Return the default of a field; None if `field(...)` or `Field(...)` gives it none."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("field", "Field"):
        named = {one.arg: one.value for one in value.keywords}
        if "default_factory" in named:
            return f"{ast.unparse(named['default_factory'])}()"
        given = named.get("default", value.args[0] if value.args else None)
        return None if given is None else ast.unparse(given)
    return ast.unparse(value)
