"""The pages in docs/, the README and CONTRIBUTING.md state what is true."""

import doctest
import importlib.util
import os
import pty
import re
import shlex
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import get_origin

import markdown
import pytest
import typer

from flbench.algorithms import ALGORITHMS
from flbench.api.comparing import methods_of
from flbench.cli.app import app
from flbench.cli.words import is_variant
from flbench.config.resolve import resolve
from flbench.config.schema import Config, OwnModelConfig
from flbench.config.sources import from_overrides
from flbench.models import MODELS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
ALL = [
    *PAGES,
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md")),
]


INVENTED = {
    "confident.py",
    "firstlayer.py",
    "slow.py",
    "test_slow.py",
    "kindred.py",
    "test_kindred.py",
    "test_NAME.py",
    "NAME.py",
}
"""Files of the examples; a mention may be a path that ends with one of these."""
COMMANDS = typer.main.get_command(app).commands


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def commands():
    """The lines of console blocks that call flbench, with their pages."""
    for page in ALL:
        for block in re.findall(r"```(?:console)?\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            for line in block.splitlines():
                found = re.search(r"(?:^\$ |^\.venv/bin/|do )(flbench [^;]*)", line)
                if found:
                    yield f"{name_of(page)}: {found[1]}", found[1]


def hooks():
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generated():
    return hooks().pages()


EXAMPLES = [page for page in PAGES if ">>> " in page.read_text("utf-8")]


@pytest.mark.docs
@pytest.mark.parametrize("page", EXAMPLES, ids=name_of)
def test_examples_give_the_printed_results(page):
    results = doctest.testfile(str(page), module_relative=False, encoding="utf-8")

    assert results.attempted
    assert not results.failed


def test_commands_have_these_options_and_keys(subtests):
    for where, line in commands():
        with subtests.test(where):
            assert_options_and_keys_exist(line)


TRAIN = ("run", "compare", "ablate", "tune", "reproduce")


def assert_options_and_keys_exist(line):
    _, name, *arguments = shlex.split(line, comments=True)
    command = COMMANDS[name.replace("--", "")]
    context = command.make_context(name, arguments)

    words = context.params.get("words") or []
    variants = [word for word in words if is_variant(word)]
    for one in methods_of(variants, "docs"):
        resolve([one.layer])
    words = [word for word in words if word not in variants]
    overrides = [word for word in words if "=" in word and not re.search(r"=\$|RUN_DIR", word)]
    named = [word for word in words if "=" not in word and ":" not in word]
    if name == "reproduce":  # papers have the names of their methods
        methods = [word for word in named if word in ALGORITHMS.names()]
    else:
        methods = ",".join([*named, *(context.params.get("algo") or [])]).split(",")
    methods = [one for one in methods if one not in ("", "NAME")] if name in TRAIN else []
    for method in methods:
        ALGORITHMS.find(method)
    own = f"algorithm={methods[0] if methods else 'fedavg'}"
    resolve([from_overrides([own, *overrides])])


def test_pages_name_what_exists(subtests):
    known = {key for name in ALGORITHMS.load() for key in ALGORITHMS.find(name).Config.model_fields}
    sources = [
        f"/{path.relative_to(ROOT).as_posix()}"
        for name in ("flbench", "tests", "docs", "benchmarks")
        for path in (ROOT / name).rglob("*.py")
    ]
    for page in ALL:
        text = page.read_text("utf-8")
        # A fence within a line makes a command part of the text, which no other test reads.
        fences = [line for line in text.splitlines() if "```" in line]
        with subtests.test("code blocks", page=name_of(page)):
            odd = [one for one in fences if not re.fullmatch(r" *```\w*(?: title=\".*\")?", one)]
            assert odd == []
            assert len(fences) % 2 == 0
        with subtests.test("keys", page=name_of(page)):
            assert_keys_exist(text)
        with subtests.test("keys of methods", page=name_of(page)):
            assert set(re.findall(r"`algorithm\.([a-z_0-9]+)(?:=[^`]*)?`", text)) <= known
        with subtests.test("source files", page=name_of(page)):
            mentions = [
                one for one in re.findall(r"`([\w/]+\.py)`", text) if Path(one).name not in INVENTED
            ]
            assert [
                one for one in mentions if not any(path.endswith(f"/{one}") for path in sources)
            ] == []


def assert_keys_exist(text):
    """Words such as `train.rounds` or `train.rounds=100` are keys of the configuration."""
    sections = "|".join(Config.model_fields)
    for path in re.findall(rf"`((?:{sections})(?:\.[a-z_0-9]+)+)(?:=[^`]*)?`", text):
        if path.endswith((".py", ".md", ".csv", ".yaml", ".npz", ".json")) or path.startswith(
            "algorithm."
        ):
            continue
        section, *keys = path.split(".")
        if section == "model":
            configs = [OwnModelConfig, *(MODELS.find(name).Config for name in MODELS.load())]
            assert any(keys[0] in config.model_fields for config in configs), path
            continue
        config = Config.model_fields[section].annotation
        for key in keys:
            if key.isdigit() and get_origin(config) is tuple:
                break  # an entry of a list; the entries have different keys
            assert key in config.model_fields, path
            config = config.model_fields[key].annotation


@pytest.mark.parametrize("page", ALL[-4:], ids=name_of)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#]+)", page.read_text("utf-8"))

    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")

    for page in PAGES:
        if page.parent.name != "board":  # these are added when the site is built
            assert page.relative_to(DOCS).as_posix() in navigation


def test_each_method_has_a_page_with_all_its_keys(generated):
    for name in ALGORITHMS.load():
        page = generated[f"methods/{name}.md"]
        for key in ALGORITHMS.find(name).Config.model_fields:
            assert key == "name" or f"| `{key}` |" in page


def test_configuration_page_has_every_key(generated):
    page = generated["reference/configuration.md"]

    def check(config, prefix):
        for name, field in config.model_fields.items():
            if hasattr(field.annotation, "model_fields"):
                check(field.annotation, f"{prefix}{name}.")
            else:
                assert f"| `{prefix}{name}` |" in page

    check(Config, "")


def test_docstrings_are_not_read_as_quotations_or_tags():
    text = (
        "Words <h_i, w> and `<a, b>`.\n\n> 0, no quotation.\n\n>>> 1 + 1\n2\n\n"
        "More.\n\n```pycon\n>>> 3\n3\n\n```\n"
    )
    html = markdown.markdown(text, extensions=[hooks().Docstrings(), "pymdownx.superfences"])

    assert "Words &lt;h_i, w&gt; and <code>&lt;a, b&gt;</code>" in html
    assert html.count("<pre") == 2
    assert "blockquote" not in html


PROBE = """
import fcntl, os, pathlib, socket, sys, termios
for place in ("/etc", "/tmp", os.path.expanduser("~"), sys.prefix, os.getcwd()):
    try:
        pathlib.Path(place, "flbench-probe").touch()
    except OSError:
        print("cannot write to", place)
for place in sys.argv[1:]:
    family = socket.AF_UNIX if "/" in place else socket.AF_INET
    target = place if "/" in place else ("127.0.0.1", int(place))
    try:
        socket.socket(family).connect(target)
        print("reached", place)
    except OSError:
        pass
try:
    fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), termios.TIOCSTI, b"x")
    print("typed into the terminal")
except OSError:
    pass
print("processes:", sum(name.isdigit() for name in os.listdir("/proc")))
print("variables:", sorted({*os.environ} - {"HOME", "LC_CTYPE", "PATH", "PWD"}))
"""


def test_namespace_for_code_of_strangers_keeps_it_in(tmp_path):
    """The command of docs/security.md, with a harmless program instead of flbench."""
    trial = "bwrap --unshare-all --ro-bind / / true || exit 77"
    if subprocess.run(trial, shell=True, capture_output=True).returncode == 77:
        pytest.skip("bubblewrap is not installed, or may not make namespaces")
    page = (DOCS / "security.md").read_text("utf-8")
    [block] = re.findall(r"^\$ ENV=.*?(?=^```)", page, re.DOTALL | re.MULTILINE)
    command = block.replace("$ ", "").partition("    flbench ")[0]
    services = Path(os.environ.get("XDG_RUNTIME_DIR") or "/run")
    place = str(services / f"flbench-{os.getpid()}.sock")
    (tmp_path / "probe.py").write_text(PROBE)
    with socket.socket(socket.AF_UNIX) as service, socket.socket() as server:
        service.bind(place)
        server.bind(("127.0.0.1", 0))
        try:
            for each in (service, server):
                each.listen()
            command += f"python probe.py {place} {server.getsockname()[1]}"
            pid, terminal = pty.fork()
            if pid == 0:
                os.chdir(tmp_path)
                os.environ["PATH"] = f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"
                os.execvp("sh", ["sh", "-c", command])
            said = bytearray()
            with suppress(OSError):  # the terminal is closed
                while more := os.read(terminal, 4096):
                    said += more
            os.waitpid(pid, 0)
        finally:
            os.unlink(place)
    lines = said.decode().splitlines()

    assert [line for line in lines if "cannot write" not in line] == [
        "processes: 2",
        "variables: []",
    ]
    assert f"cannot write to {sys.prefix}" in lines
    assert "cannot write to /etc" in lines
    assert (tmp_path / "flbench-probe").exists()
    assert not Path.home().joinpath("flbench-probe").exists()
