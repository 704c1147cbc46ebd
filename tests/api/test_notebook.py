"""The guide to the Python interface runs, and a notebook's kernel can be interrupted."""

import asyncio
import re
from io import StringIO
from pathlib import Path

import matplotlib as mpl
import nbformat
import pytest
from nbclient import NotebookClient
from rich.console import Console

import flbench as fl
from flbench.api import running
from flbench.api.progress import Bar
from flbench.config.schema import Config

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "python.md"

SETTING = """
import flbench as fl
few = fl.Dirichlet(alpha=0.5, clients=4, samples=400)
train = {"rounds": 40, "local_epochs": 1}
def begin():
    return fl.run("fedavg", partition=few, train=train, engine={"threads": 1},
                  evaluation={"every": 1}, output={"checkpoint_every": 100})
"""
INTERRUPTED = """
try:
    begin()
except KeyboardInterrupt as error:
    message = str(error)
    print(message)
"""
RESUMED = """
run = eval(message.partition("with: ")[2])
print(type(run).__name__, run.finished, run.digest == begin().digest)
"""


def text_of(cell):
    """All that a cell has shown, streams and HTML."""
    shown = [output.get("text", "") for output in cell.outputs]
    shown += [output.get("data", {}).get("text/html", "") for output in cell.outputs]
    return "".join(shown)


async def _interrupt(client, book):
    """Execute the notebook, and interrupt the kernel when cell 1 has trained a round."""
    async with client.async_setup_kernel():
        for index, cell in enumerate(book.cells):
            running = asyncio.ensure_future(client.async_execute_cell(cell, index))
            if index == 1:
                while not re.search(r"round \d+/40", text_of(cell)):
                    assert not running.done(), text_of(cell)
                    await asyncio.sleep(0.02)
                await client.km.interrupt_kernel()
            await running


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.processes
def test_interrupt_of_a_kernel_saves_and_resume_continues(tmp_path):
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(text) for text in (SETTING, INTERRUPTED, RESUMED)]
    client = NotebookClient(book, timeout=250, resources={"metadata": {"path": str(tmp_path)}})
    asyncio.run(_interrupt(client, book))
    shown = [text_of(cell) for cell in book.cells]

    assert "<progress" in shown[1]
    assert "Run True True" in shown[2]
    assert "round 40/40" in shown[2]


@pytest.mark.docs
def test_guide_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    with mpl.rc_context():
        for block in blocks:
            exec(block, names)

    assert len(blocks) >= 6
    assert "`train.optimizer.lr`" in capsys.readouterr().out
    assert names["scores"].shape == (2, 10)
    assert len(names["curve"]) == 10
    assert len(names["table"]) == 1
    assert names["partition"].hash == names["run"].partition.hash
    assert (tmp_path / "curves.png").stat().st_size


def test_bar_shows_progress_and_escapes_notes(monkeypatch):
    from IPython import display as ipython

    pages = []

    class Handle:
        def update(self, page):
            pages.append(page.data)

    def display(page, *, display_id):
        pages.append(page.data)
        return Handle()

    monkeypatch.setattr(ipython, "display", display)

    class View:
        round, rounds, loss, config = 2, 4, 0.5, Config()

    monkeypatch.setattr(running, "is_notebook", lambda: True)
    with running.display("fedavg on <b>") as bar:
        bar.on_note("a <script>")
        bar.on_run_start(View)
        View.round = 3
        bar.on_round_end(View, {})
        bar.on_evaluation_end(View, {"validation/personal/accuracy": 0.25})
        bar.on_round_end(View, {})

    assert "starting" in pages[0]
    assert "fedavg on &lt;b&gt;" in pages[0]
    assert "a &lt;script&gt;" in pages[1]
    assert 'value="2" max="4"' in pages[2]
    assert all(text in pages[-1] for text in ("3/4", "0.2500", "0.5000"))
    assert not any("<script>" in page for page in pages)


def test_a_terminal_gets_a_bar():
    class View:
        round, rounds, loss, config = 2, 4, 0.5, Config()

    console = Console(file=StringIO(), force_terminal=True, width=100)
    bar = Bar("fedavg on digits", console)
    with bar.live():
        bar.on_note("a note")
        bar.on_run_start(View)
        bar.on_round_end(View, {})
        bar.on_evaluation_end(View, {"validation/personal/accuracy": 0.25})

    shown = console.file.getvalue()
    assert all(text in shown for text in ("fedavg on digits", "a note", "2/4", "0.2500", "━"))


def test_names_of_the_guide_exist():
    for name in set(re.findall(r"`?fl\.(\w+)", GUIDE.read_text("utf-8"))):
        assert hasattr(fl, name), name
