"""The pages of the board: settings, what holds over them, and which baselines a paper should have.

SETTING-new.tar.xz has the methods of 2020 to 2025 in a setting, beside the references. Only the
page about baselines counts it among the settings.
"""

import json
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, takewhile
from pathlib import Path
from typing import Any, Final

import pandas as pd
from scipy.stats import kendalltau
from shown import ROOT, code, estimate, extent, points, render

import flbench as fl
from flbench.algorithms.catalogue import method as described
from flbench.analysis.statistics import across, correct
from flbench.core.text import in_markdown
from flbench.reproduce.paper import load
from flbench.results.left_out import LEFT_OUT

BOARD: Final = ROOT / "docs" / "board"
REFERENCES: Final = ("local", "ft")
"""What a method of personalized federated learning has to beat: no federation at all, and the
global model that each client fine-tunes."""
TUNED: Final = " tuned"
LEVEL: Final = 0.05
PUBLISHED: Final = {
    "cifar100-dir01": ("fedcpmd", "7", "CIFAR100"),
    "emnist-dir05": ("fedcpmd", "8", "EMNIST"),
    "fashion-dir01": ("fedcpmd", "7", "FMNIST"),
    "fashion-dir05": ("fedcpmd", "8", "FMNIST"),
}
"""Settings whose data set, net and partition a paper has a table for: paper, table and column."""
ALWAYS: Final = {
    "local": "whether federated learning is worth its cost at all",
    "fedavg": "the single model that the others personalize",
    "ft": "the simplest personalization: FedAvg's model, fine-tuned by each client",
}
FAMILIES: Final = {
    "One model for all clients": "fedprox scaffold fedavgm feddyn moon fedadam fedyogi fedadagrad",
    "Some layers stay with the client": "fedper fedrep fedbabu fedbn fedap fedcmd fedcpmd slapfl"
    " lgfedavg fedrod fedas fedcac gpfl fedcp",
    "A personal model beside the shared one, or adapted from it": "ditto pfedme apfl fedala"
    " perfedavg floco knnper",
    "Features and prototypes": "fedproto hfcd fedpc fednh fedpac feddbe fedtgp pfedfda",
    "Similar clients learn from each other": "pfedsim ifca cfl fedfomo fedamp",
    "Weights from a hypernetwork": "dfedhp dispfl-hp pfedhn",
    "Without a server": "dfedavg dfedavgm dfedalt dfedsalt dispfl",
}
"""Methods by what is personal in them."""
BROAD: Final = 5  # settings from which on a method counts as broadly measured


@dataclass(frozen=True)
class Gap:
    """A difference in accuracy between two methods over the repetitions.

    Attributes:
        mean: Mean, first minus second.
        low: Lower end of its interval.
        high: Upper end of its interval.
        p: P-value of the test that the interval belongs to, not corrected.
        verdict: `better`, `worse`, or an empty text where it is not significant.
    """

    mean: float
    low: float
    high: float
    p: float
    verdict: str = ""

    @property
    def none(self) -> bool:
        """Whether the two methods have the same accuracy in each repetition."""
        return self.mean == 0 and not self.low < self.high

    def __str__(self) -> str:
        """The difference in points with its interval, bold if it is significant."""
        text = points(self.mean)
        if self.low == self.low:  # not NaN
            text += f" [{points(self.low)},&nbsp;{points(self.high)}]"
        return f"**{text}**" if self.verdict else text


def corrected(gaps: dict[Any, Gap]) -> dict[Any, Gap]:
    """Return differences with verdicts, by p-values that Holm's method corrects as one family."""
    said = zip(gaps.items(), correct([gap.p for gap in gaps.values()]), strict=True)
    return {
        key: replace(gap, verdict=("better" if gap.mean > 0 else "worse") if p < LEVEL else "")
        for (key, gap), p in said
    }


class Setting:
    """The results of one setting.

    Args:
        archive: The runs, as `flbench pack` wrote them.
    """

    def __init__(self, archive: Path) -> None:
        self.name, self.archive = archive.name.removesuffix(".tar.xz"), archive.name
        self.config = self.name.removesuffix("-new")
        self.is_new = self.name != self.config
        report = fl.report(archive, force=self.is_new)  # which versions is said on the page
        self.board = report.leaderboard.set_index("method")
        self.long = report.long
        comparison = report.comparison
        [self.overlap], [self.kind] = comparison.overlaps.values(), comparison.kinds.values()
        [self.population] = {comparison.sampling_at(one).population for one in comparison.places}
        self.scores = report.scores.set_index(["metric", "method"])
        self.has_rare = bool(self.board["rare_recall"].notna().any())
        self.gaps: dict[tuple[str, str], Gap] = {}
        for row in report.pairs.itertuples():
            ends = row.difference, row.low, row.high
            self.gaps[row.first, row.second] = Gap(*ends, row.p)
            self.gaps[row.second, row.first] = Gap(-ends[0], -ends[2], -ends[1], row.p)
        # The seconds of a curve's last point are those of the whole run.
        seconds = report.curves.groupby(["method", "repetition"])["seconds"].max()
        self.seconds = seconds.groupby("method").median()
        self.runs, self.repetitions = len(report.runs), int(self.board["n"].max())
        self.left_out = [in_markdown(one) for one in report.warnings if one.startswith(LEFT_OUT)]
        self.versions = trained_with(archive) if self.is_new else ""
        names = [name for name in self.board.index if not name.endswith(TUNED)]
        self.methods = [name for name in names if name + TUNED in self.board.index]
        self.untuned = [name for name in names if name not in self.methods]
        self.tuning = corrected({name: self.gaps[name + TUNED, name] for name in self.methods})
        self.against = {kind: self._against(kind) for kind in (TUNED, "")}
        means = self.board["mean"].round(9)  # equal means keep the order of the default runs
        self.order = sorted(self.methods, key=lambda name: -means[name + TUNED])
        self.order += sorted(self.untuned, key=lambda name: -means[name])
        self.description = about(ROOT / "configs" / "board" / f"{self.config}.yaml", "Board, ")

    def _against(self, kind: str) -> dict[tuple[str, str], Gap]:
        """Return how each method differs from the references, by method and reference.

        All methods and references are one family, because one asks of each whether it is better
        than either of them; pairs of other methods are not asked for, so they do not count.
        """
        methods = self.methods if kind else [*self.methods, *self.untuned]
        return corrected(
            {
                (method, other): self.gaps[method + kind, other + kind]
                for other in REFERENCES
                for method in methods
                if method not in REFERENCES and other in methods
            }
        )

    def rows(self) -> Iterator[list[str]]:
        """Yield the rows of the table of all methods."""
        for name in self.order:
            is_tuned = name in self.methods
            shown = name + TUNED if is_tuned else name
            own = self.board.loc[shown]
            change = self.tuning.get(name)
            yield [
                code(name),
                estimate(own) if is_tuned else "-",
                estimate(self.board.loc[name]),
                "-" if change is None else "0" if change.none else str(change),
                *([estimate(self.scores.loc["rare_recall", shown])] if self.has_rare else []),
                estimate(self.scores.loc["worst10_accuracy", shown]),
                f"{own['bytes'] / 1e6:,.1f}" if own["bytes"] else "0",
                f"{self.seconds[shown]:.0f}",
            ]

    def compared(self) -> Iterator[list[str]]:
        """Yield the rows of the table of the differences to the references."""
        for name in (one for one in self.order if one not in REFERENCES):
            gaps = (
                self.against[kind].get((name, one)) for kind in (TUNED, "") for one in REFERENCES
            )
            yield [code(name), *("-" if gap is None else str(gap) for gap in gaps)]

    def named(self, kind: str, reference: str, verdict: str) -> list[str]:
        """Return the methods with a verdict against a reference, in the order of the page."""
        gaps = self.against[kind]
        return [
            name
            for name in self.order
            if (name, reference) in gaps and gaps[name, reference].verdict == verdict
        ]

    def figures(self) -> list[dict[str, Any]]:
        """Return what the page about baselines uses: a row for each tuned method."""
        accuracy, gaps = self.board["mean"], self.against[TUNED]
        return [
            {"setting": self.name, "method": name, "bytes": self.board.loc[name + TUNED, "bytes"]}
            | {"accuracy": accuracy[name + TUNED], "default": accuracy[name]}
            | {f"minus_{one}": accuracy[name + TUNED] - accuracy[one + TUNED] for one in REFERENCES}
            | {
                f"verdict_{one}": getattr(gaps.get((name, one)), "verdict", "")
                for one in REFERENCES
            }
            for name in self.methods
        ]


def about(config: Path, start: str) -> str:
    """Return the comment at the beginning of a configuration, without its first words."""
    lines = takewhile(lambda line: line.startswith("#"), config.read_text("utf-8").splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines).removeprefix(start)


def trained_with(archive: Path) -> str:
    """Return a sentence about the versions of an archive's runs; none if all have the same ones."""
    found: Counter[str] = Counter()
    with tarfile.open(archive) as runs:
        for member in runs:
            if member.name.endswith("/provenance.json") and (file := runs.extractfile(member)):
                made = json.load(file)
                revision = made.get("git_revision")
                flbench = f"revision {revision[:8]}" if revision else "a copy without a revision"
                changes = " with changes" if str(revision).endswith("-dirty") else ""
                found[f"{flbench}{changes} and PyTorch {made['packages']['torch']}"] += 1
    if len(found) < 2:
        return ""
    parts = [f"{count} runs with {versions}" for versions, count in found.most_common()]
    return (
        f"The runs were not all trained with the same code: {'; '.join(parts)}. Equal"
        " configurations may differ by rounding, and seconds may be those of different machines."
    )


@cache
def setting(name: str) -> Setting:
    """Return the results of a setting."""
    return Setting(BOARD / f"{name}.tar.xz")


def names() -> list[str]:
    """Return the names of all settings."""
    return sorted(file.name.removesuffix(".tar.xz") for file in BOARD.glob("*.tar.xz"))


def page(name: str) -> str:
    """Return the page of a setting."""
    return render("board", s=setting(name), references=REFERENCES, tuned=TUNED)


def summary() -> str:
    """Return the page over all settings."""
    settings = [setting(name) for name in names() if not name.endswith("-new")]
    means = pd.DataFrame(
        {
            one.name: {name: one.board.loc[name + TUNED, "mean"] for name in one.methods}
            for one in settings
        }
    ).dropna()
    kinds: dict[str, list[str]] = {}
    for one in settings:
        kinds.setdefault(one.kind, []).append(one.name)
    comparison = across(means.T, {one.name: one.kind for one in settings})
    return render(
        "board-summary",
        settings=settings,
        references=REFERENCES,
        tuned=TUNED,
        kinds=kinds,
        ranks=comparison,
        ranked=means.round(9).rank(ascending=False),
        orders=[Order(one) for one in settings if one.name in PUBLISHED],
    )


class Order:
    """The published order of the methods in a setting, and that of the board.

    Args:
        setting: The setting.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        name, number, column = PUBLISHED[setting.name]
        paper = load(name)
        self.where = f"{paper.name}, table {number}, {column}"
        self.values: dict[str, float] = {}
        for label, row in paper.tables[number].rows.items():
            value = paper.published.get((number, label, column))
            algo = None if value is None else paper.methods[row.method or label].algo
            if value is not None and algo in setting.methods:
                self.values[algo] = value
        self.methods = sorted(self.values, key=lambda one: -self.values[one])
        pairs = combinations(self.methods, 2)
        self.gaps = corrected(
            {
                (one, two): setting.gaps[one + TUNED, two + TUNED]
                for one, two in pairs
                if self.values[one] > self.values[two]
            }
        )
        means = [setting.board.loc[one + TUNED, "mean"] for one in self.methods]
        self.tau = kendalltau([self.values[one] for one in self.methods], means)

    def count(self, verdict: str) -> int:
        """Return how many pairs have a verdict."""
        return sum(gap.verdict == verdict for gap in self.gaps.values())


class Figures:
    """The figures of all settings.

    Args:
        table: The rows of `Setting.figures`.
    """

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table
        recent = table["setting"].str.endswith("-new") & ~table["method"].isin(ALWAYS)
        self.recent = set(table[recent]["method"])
        self.fedavg = table[table["method"] == "fedavg"].set_index("setting")["bytes"]

    def rows(self, method: str) -> pd.DataFrame:
        """Return the rows of a method; the references of the new methods count once."""
        mine = self.table[self.table["method"] == method]
        return mine[~(mine["setting"].str.endswith("-new") & (method in ALWAYS))]

    def score(self, method: str) -> float:
        """Return the mean difference to `ft` over the settings of a method."""
        return float(self.rows(method)["minus_ft"].mean())

    def there(self, family: str) -> list[str]:
        """Return the methods of a family that were measured, best first."""
        there = [name for name in FAMILIES[family].split() if len(self.rows(name))]
        return sorted(there, key=self.score, reverse=True)

    def chosen(self, methods: Sequence[str]) -> dict[str, str]:
        """Return the two methods of a family that a paper should include, each with the rule."""
        old = [name for name in methods if name not in self.recent]
        recent = [name for name in methods if name in self.recent]
        broad = [name for name in old if len(self.rows(name)) >= BROAD]
        few = [name for name in old if name not in broad]
        found: dict[str, str] = {}
        for group, why in (
            (broad, f"best of those measured in {BROAD} settings or more"),
            (recent, "best of the methods of 2020 to 2025"),
            (broad, "second of those measured broadly"),
            (few, "best of those measured in fewer settings"),
            (recent, "second of the methods of 2020 to 2025"),
        ):
            left = [name for name in group if name not in found]
            if left and len(found) < 2:
                found[left[0]] = why
        return found

    def lines(self) -> Iterator[list[str]]:
        """Yield the rows of the table of the methods to include."""
        for family in FAMILIES:
            for place, (name, why) in enumerate(self.chosen(self.there(family)).items()):
                rows = self.rows(name)
                traffic = (rows["bytes"] / rows["setting"].map(self.fedavg)).median()
                yield [
                    "" if place else family,
                    code(name),
                    why,
                    *(extent(rows[f"minus_{other}"]) for other in ("ft", "local")),
                    *(verdicts(rows[f"verdict_{other}"]) for other in REFERENCES),
                    f"{traffic:.2f}",
                    f"{100 * (rows['accuracy'] - rows['default']).mean():+.0f}",
                    described(name)["paper"]["venue"],
                ]

    def others(self) -> dict[str, list[str]]:
        """Return the methods of each family that are not in the table."""
        found = {}
        for family in FAMILIES:
            there = self.there(family)
            found[family] = [name for name in there if name not in self.chosen(there)]
        return found

    def unbeaten(self) -> int:
        """Return the number of settings in which no method is significantly better than `ft`."""
        better = self.table.groupby("setting")["verdict_ft"].agg(lambda one: "better" in set(one))
        return int((~better[list(self.rows("ft")["setting"])]).sum())


def verdicts(said: Iterable[str]) -> str:
    """Return in how many settings a method is significantly better, and worse."""
    found = list(said)
    return f"{found.count('better')} / {found.count('worse')} of {len(found)}"


def baselines(table: pd.DataFrame | None = None) -> str:
    """Return the page "Which baselines should I compare with?"."""
    if table is None:
        table = pd.DataFrame([row for name in names() for row in setting(name).figures()])
    return render("baselines", f=Figures(table), always=ALWAYS, broad=BROAD)
