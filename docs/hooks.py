"""Pages of the site that are generated: tutorials, methods, configuration keys, API reference.

MkDocs calls the functions `on_*`. Nothing that is generated here is written to `docs/`.
"""

import ast
import importlib
import inspect
import io
import pkgutil
import re
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

from jinja2 import DictLoader
from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from flbench.algorithms import catalogue
from flbench.algorithms.base import Algorithm
from flbench.config.key_types import type_name
from flbench.config.schema import (
    AlgorithmConfig,
    Config,
    ModelConfig,
    OwnModelConfig,
    TermConfig,
    TrainConfig,
)
from flbench.core.registry import ALGORITHMS, MODELS, TERMS

DOCS = Path(__file__).resolve().parent

API = {
    "api": "The interface for scripts and notebooks, which `import flbench as fl` exports",
    "core": "Trees of tensors, messages, random streams, registries and errors",
    "config": "Schema, sources and resolution of the configuration",
    "data": "Data sets, partitions and batches",
    "models": "Nets and their description",
    "losses": "Terms of the local loss",
    "metrics": "Confusion counts and the metrics computed from them",
    "client": "Local programs and the Lightning module that trains them",
    "engine": "Engines that run local programs",
    "algorithms": "Base class of the methods, and what methods share",
    "callbacks": "Callbacks: hooks of a run, early stopping, and Lightning's loggers",
    "experiment": "Rounds, evaluation, checkpoints and run folders",
    "results": "Reading of finished runs",
    "tuning": "Search spaces, trials and studies",
    "testing": "The contract tests of methods, and helpers for tests of one method",
}
"""The packages of the API reference, and one line about each."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the navigation with the generated pages, and let pages show doctests as code."""
    config.markdown_extensions.append(Docstrings())  # type: ignore[arg-type]
    math = {"name": "math", "class": "math", "format": formula}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [math]}
    methods = [{"Overview": "methods/index.md"}]
    methods += [{name: f"methods/{name}.md"} for name in ALGORITHMS.load()]
    packages = [{"Overview": "api/index.md"}]
    packages += [{f"flbench.{name}": f"api/{name}.md"} for name in API]
    for entry in config.nav or []:
        if "Methods" in entry:
            entry["Methods"] = methods
        if "API" in entry:
            entry["API"] = packages
        if "Results" in entry:
            board = next(each["Board"] for each in entry["Results"] if "Board" in each)
            board += board_pages()
    return config


def board_pages() -> list[dict[str, str]]:
    """Return the entries of the navigation for the pages that `benchmarks/pages.py` wrote."""
    settings = sorted(page.stem for page in (DOCS / "board").glob("*.md"))
    names = {name: "Over all settings" if name == "summary" else name for name in settings}
    return [{shown: f"board/{name}.md"} for name, shown in names.items()]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path, content in {**pages(), **tutorials()}.items():
        files.append(File.generated(config, path, content=content))
    return files


def pages() -> dict[str, str]:
    """Return the Markdown of each generated page, by its path below `docs/`."""
    measured = results()
    found = {f"methods/{name}.md": method_page(name, measured) for name in ALGORITHMS.load()}
    found["methods/index.md"] = methods_overview()
    found["reference/configuration.md"] = configuration_page()
    found["api/index.md"] = api_overview()
    for path, file in READMES.items():
        found[path] = readme(file)
    return found | {f"api/{name}.md": api_page(name) for name in API}


INNER_PRODUCT = re.compile(r"<(?=[A-Za-z][^<>]*,[^<>]*>)(?=[^`]*(?:`[^`]*`[^`]*)*$)")
"""The first character of `<x, y>`, where it is not between backticks."""


class Docstrings(Extension):
    """What docstrings write and Markdown would read as something else.

    A doctest becomes a block of code; `<` of an inner product begins no tag, and a line such as
    `> 0, the temperature` is not a quotation.
    """

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  (Markdown calls it so)
        """Run before the blocks of code are taken out of the text."""
        md.preprocessors.register(_Docstrings(md), "docstrings", priority=28)


class _Docstrings(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        found: list[str] = []
        in_code = in_doctest = False
        for line in [*lines, ""]:
            in_code ^= line.lstrip().startswith("```")
            if not in_code and line.startswith(">>> ") and not in_doctest:
                in_doctest = True
                found += ["", "```pycon"]
            elif in_doctest and not line.strip():
                in_doctest = False
                found.append("```")
            if not (in_code or in_doctest):
                line = INNER_PRODUCT.sub("&lt;", re.sub(r"^(\s*)>", r"\1&gt;", line))
            found.append(line)
        return found[:-1]


def formula(source: str, *_: Any, **__: Any) -> str:
    """Return a block of LaTeX as MathML, which browsers draw without a script."""
    return f'<div class="math">{convert(source, display="block")}</div>'


# READMEs of folders, whose pages are links from the repository's root

READMES = {"guides/mlflow.md": "mlflow/README.md", "guides/search-spaces.md": "tune/README.md"}


def readme(file: str) -> str:
    """Return the README of a folder as a page; other files of the folder are named without link."""
    text = DOCS.parent.joinpath(file).read_text("utf-8").replace("](../docs/", "](../")
    return re.sub(r"\[([^]]+)\]\((?!\.\./|https?:|#)[^)]+\)", r"`\1`", text)


# Tutorials

NOTEBOOK = """
{%- extends "markdown/index.md.j2" -%}
{%- block stream %}
```text
{{ output.text.rstrip() }}
```
{% endblock stream -%}
{%- block data_text %}
```text
{{ output.data["text/plain"].rstrip() }}
```
{% endblock data_text -%}
"""
"""Template of nbconvert for the outputs of a notebook: text in fenced blocks of code."""


def tutorials() -> dict[str, str | bytes]:
    """Return the page of each notebook in `docs/tutorials/`, and its pictures, by their paths."""
    loader = DictLoader({"notebook.md.j2": NOTEBOOK})
    exporter = MarkdownExporter(template_file="notebook.md.j2", extra_loaders=[loader])
    found: dict[str, str | bytes] = {}
    for path in sorted((DOCS / "tutorials").glob("*.ipynb")):
        text, resources = exporter.from_filename(str(path))
        # The tables of pandas look like those of other pages.
        text = re.sub(r"<style scoped>.*?</style>", "", text, flags=re.DOTALL)
        text = text.replace('<table border="1" class="dataframe">', "<table>")
        title, _, rest = text.lstrip().partition("\n")
        note = (
            f"This page is a notebook. [Download it]({path.name}) to run it yourself, with"
            " `pip install flbench` in its kernel."
        )
        # Pictures of all notebooks are in one folder.
        rest = rest.replace("](output_", f"]({path.stem}-output_")
        found[f"tutorials/{path.stem}.md"] = f"{title}\n\n{note}\n{rest}"
        for name, picture in resources["outputs"].items():
            found[f"tutorials/{path.stem}-{name}"] = picture
    return found


# Methods


def methods_overview() -> str:
    """Return the page that lists all methods."""
    lines = [
        "# Methods",
        "",
        f"flbench has {len(ALGORITHMS.load())} methods. The table shows what a client receives"
        " (down), what it sends (up), and what it keeps between two rounds. The letters mean:",
        "",
        "- `w`: all parameters and buffers of the net;",
        "- `C`: the number of classes; `D`: the width of the features, the inputs of the head;",
        "- body or backbone: the net without its last linear layer, which is the head.",
        "",
        "`flbench algos` prints the same table, and `flbench algos NAME` prints one method."
        " [Write your own method](../guides/your-method.md) explains how a method is added.",
        "",
        "| method | paper | down | up | keeps |",
        "|---|---|---|---|---|",
    ]
    for name in ALGORITHMS.load():
        entry = catalogue.method(name)
        paper = entry["paper"]
        cells = [
            f"{paper['title']}, {paper['venue']}",
            *(entry[k] for k in ("down", "up", "keeps")),
        ]
        lines.append(f"| [`{name}`]({name}.md) | {' | '.join(map(cell, cells))} |")
    lines += [
        "",
        "## Code and checks",
        "",
        "- *lines*: of the method's file; *code*: without comments, docstrings and blank lines."
        " What several methods use is in `flbench/algorithms/shared/`.",
        "- *keys*: configuration keys that this method alone has.",
        "",
        "The tests compare what a method computes with a loop over clients, batches and samples by"
        " the plain formulas of the paper, in float64, or with FedAvg or another method of which it"
        " is a case.",
        "",
        "| method | lines | code | keys |",
        "|---|---|---|---|",
    ]
    for name in ALGORITHMS.load():
        kind = ALGORITHMS.find(name)
        source = source_of(kind.__module__)
        keys = [key for key in kind.Config.model_fields if key not in AlgorithmConfig.model_fields]
        cells = [str(source.count("\n")), str(lines_of_code(source))]
        cells.append(", ".join(map(code, keys)))
        lines.append(f"| [`{name}`]({name}.md) | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def lines_of_code(source: str) -> int:
    """Return the number of lines without comments, docstrings and blank lines."""
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in layout | {tokenize.ENDMARKER}
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def method_page(name: str, measured: dict[str, list[str]]) -> str:
    """Return the page of one method.

    Args:
        name: Name of the method in the registry.
        measured: Rows of the table in `docs/results.md`, by method; the key `` holds the header.
    """
    entry, kind = catalogue.method(name), ALGORITHMS.find(name)
    paper = entry["paper"]
    lines = [f"# {name}", "", summary_of(kind), "", "## Paper", ""]
    source = f"{escape(paper['authors'])}: *{escape(paper['title'])}*. {escape(paper['venue'])}."
    lines += [source if paper["authors"] != "-" else f"{escape(paper['title'])}."]
    if paper["doi"]:
        lines += [f"DOI: {paper['doi']}."]
    lines += ["", "## What it does", "", prose(entry["about"]), ""]
    lines += ["## Communication", "", "| direction | content |", "|---|---|"]
    for key, label in (
        ("down", "server to client"),
        ("up", "client to server"),
        ("keeps", "kept by the client"),
    ):
        lines.append(f"| {label} | {cell(entry[key])} |")
    lines += [
        "",
        "`w` stands for all parameters and buffers, `C` for the number of classes and `D` for the"
        " width of the features. With methods without a server, clients exchange tensors with"
        " their neighbours instead.",
        "",
        "## Keys",
        "",
        f"Keys of `algorithm` with `algorithm.name={name}`. On the command line, a key is"
        " written as `algorithm.KEY=VALUE`.",
        "",
        *key_table(kind.Config, "", skip=("name",)),
        "",
        f"`flbench tune --algo {' '.join((name, *entry['example']))}` searches the space in"
        f" `tune/{name}.yaml` ([Tune methods](../guides/tune.md)).",
        "",
    ]
    if entry["needs"]:
        lines += ["## Needs", "", *(f"- {escape(need)}" for need in entry["needs"]), ""]
    lines += ["## Measured", ""]
    if name in measured:
        lines += [
            "On Fashion-MNIST in FedCPMD's setting: 100 clients, 10 in each round, 100 rounds, one"
            " seed. [Results](../results.md) defines the columns and describes the set-up.",
            "",
            *measured[""],
            *measured[name],
            "",
        ]
    else:
        lines += ["This method has no row in [Results](../results.md) yet.", ""]
    words = " ".join((name, *entry["example"]))
    lines += ["## Run it", "", "```console", f"$ flbench run --algo {words}", "```", ""]
    module = kind.__module__
    lines += [f"The source is `{module.replace('.', '/')}.py`, class `{kind.__name__}`.", ""]
    return "\n".join(lines)


def summary_of(kind: type[Algorithm]) -> str:
    """Return the first sentence of a method's module, without the method's name in front."""
    text = (inspect.getdoc(inspect.getmodule(kind)) or "").split("\n\n")[0].replace("\n", " ")
    return escape(text)


def results() -> dict[str, list[str]]:
    """Return the rows of the first table of `docs/results.md`, by method; "" holds the header."""
    found: dict[str, list[str]] = {}
    for line in (DOCS / "results.md").read_text("utf-8").splitlines():
        first = line.strip("|").split("|")[0].strip().strip("`")
        if line.startswith("| method") and not found:
            found[""] = [line]
        elif line.startswith("|---") and len(found) == 1:
            found[""].append(line)
        elif line.startswith("|") and found:
            found.setdefault(re.split(r"[ ,(]", first)[0].strip("`"), []).append(line)
        elif found:
            break
    return found


# Configuration


def configuration_page() -> str:
    """Return the reference of all configuration keys."""
    lines = [
        "# Configuration reference",
        "",
        "Every key has a default. A key is set in a YAML file (`--config FILE`, which holds"
        " differences from the defaults only) or on the command line as `section.key=value`; the"
        " command line wins. `flbench run --print-config` prints the resolved configuration with"
        " the origin of each value. Unknown keys, values of a wrong type and values outside their"
        " range are errors that name the key, the value, and where it was set. In a file, a section"
        " without keys (a line `train:` with nothing below it) has its defaults; on the command"
        " line `train=null` is an error.",
        "",
        "Some sections take a name directly: `model=lenet5` is `model.name=lenet5`, likewise"
        " `algorithm`, `data`, `engine`, `train.optimizer` and `train.schedule`, and"
        " `partition=iid` is `partition.scheme=iid`. A list is written in brackets:"
        " `'partition.split=[0.6, 0.2, 0.2]'`. `null` unsets a key whose default is `null`.",
        "",
    ]
    top = [name for name, field in Config.model_fields.items() if section_of(field) is None]
    lines += ["## Top level", "", *key_table(Config, "", only=top), ""]
    for name, field in Config.model_fields.items():
        kind = section_of(field)
        if kind is None:
            continue
        lines += [f"## {name}", "", prose(inspect.getdoc(kind) or ""), ""]
        lines += [*section_tables(kind, f"{name}."), ""]
        if kind is TrainConfig:
            lines += [f"### {name}.terms", "", prose(inspect.getdoc(TermConfig) or ""), ""]
            lines += [*key_table(TermConfig, f"{name}.terms."), ""]
            lines += choices(TERMS, TermConfig, f"{name}.terms", "term")
        if kind is ModelConfig:
            lines += choices(MODELS, ModelConfig, "model", "net")
            lines += ["### A net of your own", "", prose(inspect.getdoc(OwnModelConfig) or ""), ""]
            own = [key for key in OwnModelConfig.model_fields if key not in kind.model_fields]
            lines += [*key_table(OwnModelConfig, "model.", only=own), ""]
        if kind is AlgorithmConfig:
            lines += choices(ALGORITHMS, AlgorithmConfig, "algorithm", "method")
    return "\n".join(lines)


def section_tables(kind: type[BaseModel], prefix: str) -> list[str]:
    """Return the keys of a section, then those of the sections inside it."""
    plain = [
        name
        for name, field in kind.model_fields.items()
        if section_of(field) is None or accepts_words(field)
    ]
    lines = key_table(kind, prefix, only=plain)
    for name, field in kind.model_fields.items():
        inner = section_of(field)
        if inner is not None:
            lines += ["", f"### {prefix}{name}", "", prose(inspect.getdoc(inner) or ""), ""]
            lines += section_tables(inner, f"{prefix}{name}.")
    return lines


def choices(registry: Any, base: type[BaseModel], section: str, noun: str) -> list[str]:
    """Return the keys that each net or method adds to its section."""
    lines: list[str] = []
    without = []
    for name in registry.load():
        kind = registry.find(name).Config
        common = [key for key in base.model_fields if key in kind.model_fields]
        same = [k for k in common if k == "name" or same_field(base, kind, k)]
        if not kind.model_fields.keys() - set(same):
            without.append(f"`{name}`")
            continue
        lines += [f"### {section}.name={name}", ""]
        if section == "algorithm":
            lines += [f"[The method's page](../methods/{name}.md) describes it.", ""]
        lines += [*key_table(kind, f"{section}.", skip=same), ""]
    if without:
        lines += [f"Without keys of their own ({noun}): {', '.join(without)}.", ""]
    return lines


def same_field(base: type[BaseModel], kind: type[BaseModel], key: str) -> bool:
    """Return whether a key has the same default and meaning in a section and in its subclass."""
    one, other = base.model_fields[key], kind.model_fields[key]
    return (one.default, one.description) == (other.default, other.description)


def key_table(
    kind: type[BaseModel],
    prefix: str,
    *,
    only: list[str] | None = None,
    skip: tuple[str, ...] | list[str] = (),
) -> list[str]:
    """Return the table of a section's keys: meaning, default, and type with range and unit."""
    lines = ["| key | meaning | default | values |", "|---|---|---|---|"]
    schema = kind.model_json_schema()["properties"]
    for name, field in kind.model_fields.items():
        if name in skip or (only is not None and name not in only):
            continue
        entry = catalogue.parameter(name, schema[name])
        cells = [
            f"`{prefix}{name}`",
            cell(entry["meaning"] or ""),
            f"`{shown(field)}`",
            values(field, entry),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def values(field: FieldInfo, entry: dict[str, Any]) -> str:
    """Return type, range and unit of a key, for a cell of a table."""
    kind, extent = type_name(field.annotation), entry["range"]
    if extent in ("(-inf, inf)", "true | false"):
        extent = ""
    unit = f", in {entry['unit']}" if entry["unit"] else ""
    return f"{cell(kind)} {code(extent)}{unit}".strip()


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the schema of a section; None for a plain key."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def accepts_words(field: FieldInfo) -> bool:
    """Return whether a key accepts a word in the place of its section."""
    return any(get_origin(kind) is Literal for kind in get_args(field.annotation))


def shown(field: FieldInfo) -> str:
    """Return a key's default as YAML writes it."""
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value)


# API reference

LATER = "---\nsearch:\n  boost: 0.2\n---\n"
"""Head of a page that the search of the site lists after the guides."""


def api_overview() -> str:
    """Return the page that lists the packages."""
    lines = [
        "# API reference",
        "",
        "The packages import from each other in one direction only"
        " ([Architecture](../architecture.md#packages-and-layers)). Names that begin with an"
        " underscore are private. The classes of the methods are described under"
        " [Methods](../methods/index.md).",
        "",
        "| package | content |",
        "|---|---|",
    ]
    lines += [f"| [`flbench.{name}`]({name}.md) | {text} |" for name, text in API.items()]
    return "\n".join(lines) + "\n"


def api_page(name: str) -> str:
    """Return the page of a package: one block of mkdocstrings for each of its modules."""
    lines = [LATER, f"# flbench.{name}", "", f"{API[name]}.", ""]
    for module in modules(f"flbench.{name}"):
        lines += [f"::: {module}", ""]
    return "\n".join(lines)


def modules(package: str) -> Iterator[str]:
    """Yield the public modules of a package that define something, those of subpackages included.

    The modules of the methods are left out: each method has a page of its own.
    """
    registered = {ALGORITHMS.find(name).__module__ for name in ALGORITHMS.load()}
    root: ModuleType = importlib.import_module(package)
    found = [package] if root.__file__ else []
    found += [
        entry.name
        for entry in pkgutil.walk_packages(root.__path__, f"{package}.")
        if not entry.name.rpartition(".")[2].startswith("_")
    ]
    for name in found:
        if name in registered:
            continue
        tree = ast.parse(source_of(name))
        if any(isinstance(node, ast.ClassDef | ast.FunctionDef) for node in tree.body):
            yield name


def source_of(module: str) -> str:
    """Return the source of a module without importing it."""
    path = DOCS.parent.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text("utf-8")


# Text

MARKUP = re.compile(r"([\\*_\[\]<>&#|])")


def escape(text: str) -> str:
    """Return plain text as Markdown; what is between backticks stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if k % 2 else MARKUP.sub(_entity, part) for k, part in enumerate(parts))


def _entity(character: re.Match[str]) -> str:
    return f"&#{ord(character[0])};"


def cell(text: str) -> str:
    """Return text for a cell of a table, in which a bar separates columns."""
    return escape(text.replace("\n", " ")).replace("`|`", "`&#124;`")


def code(text: str) -> str:
    """Return text for a cell as code; bars between choices become commas."""
    text = text.replace(" | ", ", ").replace("9.22337e+18", "2^63")
    return f"`{text}`" if text else ""


def prose(docstring: str) -> str:
    """Return a docstring as Markdown.

    Paragraphs and lists stay what they are. Indented lines and doctests become blocks of code. A
    heading of Google's style (`Args:`) becomes a bold line.
    """
    blocks = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = block.splitlines()
        heading = re.fullmatch(r"(\w[\w ]*):", lines[0])
        if heading and len(lines) > 1 and lines[1].startswith("    "):
            blocks.append(f"**{heading[1]}**")
            lines = textwrap.dedent("\n".join(lines[1:])).splitlines()
            if not lines[0].startswith(">>>"):
                items = re.split(r"\n(?=\S)", "\n".join(lines))
                blocks.append("\n".join(f"- {escape(' '.join(i.split()))}" for i in items))
                continue
        if lines[0].startswith(">>>"):
            blocks.append("\n".join(["```pycon", *lines, "```"]))
        elif all(line.startswith("    ") for line in lines):
            blocks.append("\n".join(["```text", *textwrap.dedent(block).splitlines(), "```"]))
        else:
            blocks.append("\n".join(_line(line) for line in lines))
    return "\n\n".join(blocks)


def _line(line: str) -> str:
    """Return one line of prose; the marker of a list stays."""
    marker = re.match(r"(\s*(?:[-*]|\d+\.) )?", line)
    start = marker[1] or "" if marker else ""
    return start + escape(line[len(start) :])
