"""Writes the board's pages from the raw results: one per archive, and one over all of them.

usage: python benchmarks/board_pages.py [FOLDER [SETTING]] (default: docs/board, all settings)

Each FOLDER/SETTING.tar.xz gets a page FOLDER/SETTING.md, and FOLDER/summary.md has what holds over
the settings. SETTING-new.tar.xz has the methods of 2020 to 2025 in the setting SETTING, beside the
references `local`, `ft` and `fedavg`; they are not in the summary. All figures come from
`flbench.report`; nothing is trained.
"""

import sys
from collections.abc import Iterable, Sequence
from itertools import combinations, takewhile
from math import isnan
from pathlib import Path
from typing import Any, Final

import pandas as pd
from scipy.stats import kendalltau
from trained_with import trained_with

import flbench as fl
from flbench.analysis.statistics import across, correct
from flbench.core.errors import UserError
from flbench.core.text import in_code, in_markdown, one_line, printable
from flbench.reproduce.paper import load
from flbench.reproduce.report import with_sign
from flbench.results.left_out import LEFT_OUT

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
NEW: Final = "-new"
"""End of the names of archives with the methods of 2020 to 2025."""
CONFIGS: Final = Path(__file__).resolve().parents[1] / "configs" / "board"


class Setting:
    """The results of one setting.

    Args:
        archive: The runs, as `flbench pack` wrote them.
        only_accuracy: Whether to leave out all other metrics, which takes a third of the time.
    """

    def __init__(self, archive: Path, *, only_accuracy: bool = False) -> None:
        self.name = archive.name.removesuffix(".tar.xz")
        self.archive = archive
        self.is_new = self.name.endswith(NEW)
        self.config = self.name.removesuffix(NEW)
        comparison = fl.report(archive, force=self.is_new)  # which versions is said on the page
        self.has_rare = bool(comparison.leaderboard["rare_recall"].notna().any())
        others = ("rare_recall", "worst10_accuracy") if self.has_rare else ("worst10_accuracy",)
        comparisons = {
            "accuracy": comparison,
            **{
                metric: fl.report(archive, metric=metric, force=self.is_new)
                for metric in others
                if not only_accuracy
            },
        }
        self.boards = {
            metric: each.leaderboard.set_index("method") for metric, each in comparisons.items()
        }
        self.pairs = comparison.pairs
        [self.kind] = comparison.kinds.values()
        [self.population] = comparison.populations.values()
        # The seconds of a curve's last point are those of the whole run.
        seconds = comparison.curves.groupby(["method", "repetition"])["seconds"].max()
        self.seconds = seconds.groupby("method").median()
        self.runs = len(comparison.runs)
        self.left_out = [text for text in comparison.warnings if text.startswith(LEFT_OUT)]
        self.repetitions = int(self.boards["accuracy"]["n"].max())
        names = [name for name in self.boards["accuracy"].index if not name.endswith(TUNED)]
        self.methods = [name for name in names if f"{name}{TUNED}" in self.boards["accuracy"].index]
        self.untuned = [name for name in names if name not in self.methods]

    @property
    def description(self) -> str:
        """The sentence of the comment at the beginning of the configuration: `Board, SENTENCE`."""
        lines = (CONFIGS / f"{self.config}.yaml").read_text("utf-8").splitlines()
        comment = takewhile(lambda line: line.startswith("#"), lines)
        sentence = " ".join(line.removeprefix("#").strip() for line in comment)
        return f"{sentence.removeprefix('Board, ').removesuffix('.')}."

    def pair(self, first: str, second: str) -> "Gap":
        """Return the difference in accuracy between two methods, first minus second."""
        rows = self.pairs
        for one, other, sign in ((first, second, 1), (second, first, -1)):
            row = rows[(rows["first"] == one) & (rows["second"] == other)]
            if len(row):
                return Gap(row.iloc[0], sign)
        raise KeyError((first, second))

    def against(self, reference: str, suffix: str) -> dict[str, "Gap"]:
        """Return how each method differs from a reference in accuracy, with Holm's correction.

        All methods and references are one family, because one asks of each whether it is better
        than either of them; pairs of other methods are not asked for, so they do not count.
        """
        methods = self.methods if suffix else [*self.methods, *self.untuned]
        pairs = [
            (method, other)
            for other in REFERENCES
            for method in methods
            if method not in REFERENCES and other in methods
        ]
        gaps = corrected(self.pair(method + suffix, other + suffix) for method, other in pairs)
        return {
            method: gap
            for (method, other), gap in zip(pairs, gaps, strict=True)
            if other == reference
        }

    def tuning(self) -> dict[str, "Gap"]:
        """Return what tuning changes for each method, corrected by Holm for the methods."""
        gaps = corrected(self.pair(name + TUNED, name) for name in self.methods)
        return dict(zip(self.methods, gaps, strict=True))


class Gap:
    """A difference of two methods over the repetitions.

    Args:
        row: Row of `Comparison.pairs`.
        sign: 1, or -1 for second minus first.
    """

    def __init__(self, row: "pd.Series[Any]", sign: int) -> None:
        ends = sorted([sign * row["low"], sign * row["high"]])
        self.mean, self.low, self.high = sign * row["difference"], *ends
        self.p = float(row["p"])  # of the test that the interval belongs to
        self.p_holm = float("nan")

    @property
    def none(self) -> bool:
        """Whether the two methods have the same accuracy in each repetition."""
        return self.mean == 0 and not self.low < self.high

    @property
    def verdict(self) -> str:
        """`better`, `worse` or an empty text if the difference is not significant."""
        if not self.p_holm < LEVEL:
            return ""
        return "better" if self.mean > 0 else "worse"

    def __str__(self) -> str:
        """The difference in points, with its interval."""
        mean, low, high = (with_sign(100 * x, 1) for x in (self.mean, self.low, self.high))
        return mean if isnan(self.low) else f"{mean} [{low},&nbsp;{high}]"


def corrected(gaps: Iterable[Gap]) -> list[Gap]:
    """Return differences with their p-values corrected by Holm's method, as one family."""
    family = list(gaps)
    for gap, p in zip(family, correct([gap.p for gap in family]), strict=True):
        gap.p_holm = p
    return family


def percent(value: float) -> str:
    """Return a share in %; nothing for a missing one."""
    return "" if isnan(value) else f"{100 * value:.1f}"


def estimate(row: "pd.Series[Any]") -> str:
    """Return a mean in % with its interval."""
    if isnan(row["low"]):
        return percent(row["mean"])
    return f"{percent(row['mean'])} [{percent(row['low'])},&nbsp;{percent(row['high'])}]"


def megabytes(value: float) -> str:
    """Return bytes in MB."""
    return "0" if value == 0 else f"{value / 1e6:,.1f}"


def names(methods: Iterable[str]) -> str:
    """Return names of methods as a list in Markdown."""
    return ", ".join(map(in_code, methods)) or "none"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def page(setting: Setting) -> str:
    """Return the page of a setting."""
    board, worst = setting.boards["accuracy"], setting.boards["worst10_accuracy"]
    rare = setting.boards.get("rare_recall")
    tuning = setting.tuning()
    against = {
        suffix: {name: setting.against(name, suffix) for name in REFERENCES}
        for suffix in ("", TUNED)
    }
    order = sorted(setting.methods, key=lambda name: -board.loc[name + TUNED, "mean"])
    order += sorted(setting.untuned, key=lambda name: -board.loc[name, "mean"])
    rare_head = ["rare-class recall, tuned"] if rare is not None else []
    head = ["method", "accuracy, tuned", "accuracy, default", "tuned minus default"]
    head += [*rare_head, "worst tenth, tuned", "MB, tuned", "seconds, tuned"]
    rows = []
    for name in order:
        tuned = name + TUNED
        if name in setting.untuned:
            cells = [in_code(name), "-", estimate(board.loc[name]), "-"]
            cells += [estimate(rare.loc[name])] if rare is not None else []
            cells += [estimate(worst.loc[name]), megabytes(board.loc[name, "bytes"])]
            rows.append([*cells, f"{setting.seconds[name]:.0f}"])
            continue
        cells = [in_code(name), estimate(board.loc[tuned]), estimate(board.loc[name])]
        change = "0" if tuning[name].none else str(tuning[name])
        cells.append(f"**{change}**" if tuning[name].verdict else change)
        cells += [estimate(rare.loc[tuned])] if rare is not None else []
        cells += [estimate(worst.loc[tuned]), megabytes(board.loc[tuned, "bytes"])]
        rows.append([*cells, f"{setting.seconds[tuned]:.0f}"])
    what = f"{setting.config}, methods of 2020 to 2025" if setting.is_new else setting.name
    lines = [
        f"# The board: {what}",
        "",
        setting.description,
        "",
        f"Written by `benchmarks/board_pages.py` from the results of {setting.runs} runs in"
        f" `docs/board/{setting.archive.name}`;",
        f"the configuration is `configs/board/{setting.config}.yaml`. {len(order)} methods,"
        " each with its default",
        "hyper-parameters and with those that a search found (eight trials per method, scored on"
        " validation parts, with",
        f"another seed of the partition), {setting.repetitions} repetitions that differ in the"
        " seeds of partition and training. In %: means over",
        "the repetitions with 95 % intervals; test samples of all clients, at the best round by"
        " validation. Differences in bold",
        f"are significant {setting.population}, after Holm's correction for all methods. The"
        " intervals are those of single",
        "differences, without Holm's correction, so an interval without 0 need not be bold. A"
        " difference of 0 has no interval:",
        "all repetitions agree, as where the search kept the default hyper-parameters. The worst"
        " tenth are the",
        "[clients with the lowest accuracies](../metrics.md#metrics-over-all-clients). Seconds are"
        " the median wall time of a run with one",
        "thread, while other programs ran on the machine.",
        *about_new(setting),
        "",
        *table(head, rows),
        "",
        "## Better than clients that train alone, and than fine-tuning?",
        "",
        "Differences in accuracy, in points. The p-values are corrected by Holm's method for all"
        " methods and both references.",
        "",
    ]
    head = ["method"]
    head += [f"minus `{other}`, {kind}" for kind in ("tuned", "default") for other in REFERENCES]
    rows = []
    for name in (each for each in order if each not in REFERENCES):
        cells = [in_code(name)]
        for suffix, other in ((s, o) for s in (TUNED, "") for o in REFERENCES):
            gap = against[suffix][other].get(name)
            shown = "-" if gap is None else str(gap)
            cells.append(f"**{shown}**" if gap is not None and gap.verdict else shown)
        rows.append(cells)
    lines += [*table(head, rows), ""]
    for suffix, kind in ((TUNED, "Tuned"), ("", "With default parameters")):
        for other in REFERENCES:
            gaps = against[suffix][other]
            better = [name for name in order if name in gaps and gaps[name].verdict == "better"]
            worse = [name for name in order if name in gaps and gaps[name].verdict == "worse"]
            lines.append(
                f"- {kind}, better than `{other}`: {names(better)}. Worse: {names(worse)}."
            )
    if setting.left_out:
        lines += ["", *(f"- {in_markdown(sentence)}" for sentence in setting.left_out)]
    return "\n".join([*lines, ""])


def about_new(setting: Setting) -> list[str]:
    """Return what the page of the methods of 2020 to 2025 says besides."""
    if not setting.is_new:
        return []
    lines = [
        "",
        f"Partitions and seeds are those of [the other methods]({setting.config}.md). The"
        " references `local`, `fedavg` and `ft`",
        "were searched and trained again, so that all methods of this page have one search. The"
        " trials of the search were drawn at",
        "random and trained to the end, with a seed and a partition that no repetition has."
        " `benchmarks/new_methods.py` trains what",
        "this page shows.",
    ]
    if versions := trained_with(setting.archive):
        lines += ["", versions]
    if setting.untuned:
        lines += ["", f"Not tuned: {names(setting.untuned)}."]
    return lines


def summary(settings: Sequence[Setting]) -> str:
    """Return the page over all settings."""
    lines = [
        "# What holds over the settings",
        "",
        "Written by `benchmarks/board_pages.py`. Better and worse: significantly, after Holm's"
        " correction for all methods and",
        "both references of the setting. Accuracies in %, of tuned methods.",
        "",
    ]
    head = ["setting", "best mean", "`local`", "`ft`", "`fedavg`", "better than `local`"]
    head += ["better than `ft`", "tuning helps"]
    rows = []
    for setting in settings:
        board = setting.boards["accuracy"]
        tuned = [name + TUNED for name in setting.methods]
        best = board.loc[tuned]["mean"].idxmax()
        cells = [f"[{setting.name}]({setting.name}.md)"]
        cells.append(f"{in_code(best.removesuffix(TUNED))} {estimate(board.loc[best])}")
        cells += [estimate(board.loc[name + TUNED]) for name in (*REFERENCES, "fedavg")]
        for other in REFERENCES:
            gaps = setting.against(other, TUNED)
            better = sum(gap.verdict == "better" for gap in gaps.values())
            cells.append(f"{better} of {len(gaps)}")
        helped = [name for name, gap in setting.tuning().items() if gap.verdict == "better"]
        rows.append([*cells, names(helped)])
    lines += [*table(head, rows), ""]
    lines += ranks(settings)
    lines += orderings(settings)
    return "\n".join([*lines, ""])


def ranks(settings: Sequence[Setting]) -> list[str]:
    """Return the lines about the ranks of the methods that all settings have."""
    means = pd.DataFrame(
        {
            setting.name: {
                name: setting.boards["accuracy"].loc[name + TUNED, "mean"]
                for name in setting.methods
            }
            for setting in settings
        }
    ).dropna()
    kinds = {setting.name: setting.kind for setting in settings}
    comparison = across(means.T, kinds)
    if comparison is None:
        return []
    ranked = means.rank(ascending=False)
    friedman = f"Friedman's test: p = {comparison.friedman:.2g}."
    alike = [
        f"{', '.join(name for name in kinds if kinds[name] == kind)} ({in_markdown(kind)})"
        for kind in dict.fromkeys(kinds.values())
    ]
    return [
        "## Ranks",
        "",
        f"Ranks of the {len(means)} methods that all {comparison.places} settings have, by tuned"
        " mean accuracy (1 is best).",
        "Settings with the same kind of partition rank methods alike, so the tests count each of"
        f" the {comparison.blocks} kinds once:",
        f"{'; '.join(alike)}.",
        f"The mean rank is that over the kinds. {friedman}",
        f"Two mean ranks differ significantly if they are {comparison.critical:.1f} or more apart"
        " (Nemenyi's critical difference).",
        "",
        *table(
            ["method", "mean rank", *means],
            (
                [in_code(str(name)), f"{rank:.1f}", *(f"{each:g}" for each in ranked.loc[name])]
                for name, rank in comparison.ranks.items()
            ),
        ),
    ]


def printed(setting: str) -> tuple[str, dict[str, float]]:
    """Return where accuracies for a setting are published, and those accuracies by method."""
    name, number, column = PUBLISHED[setting]
    paper = load(name)
    values: dict[str, float] = {}
    for label, row in paper.tables[number].rows.items():
        if (value := paper.published.get((number, label, column))) is not None:
            values[paper.methods[row.method or label].algo] = value
    where = f"{paper.name}, table {number}, {column}"
    return where, values


def orderings(settings: Sequence[Setting]) -> list[str]:
    """Return the lines about the published orders of methods."""
    rows, other_order = [], []
    for setting in (one for one in settings if one.name in PUBLISHED):
        where, values = printed(setting.name)
        methods = sorted(set(values) & set(setting.methods), key=lambda name: -values[name])
        pairs = [pair for pair in combinations(methods, 2) if values[pair[0]] > values[pair[1]]]
        gaps = corrected(setting.pair(first + TUNED, second + TUNED) for first, second in pairs)
        counts = [sum(gap.verdict == kind for gap in gaps) for kind in ("better", "worse", "")]
        means = setting.boards["accuracy"]["mean"]
        tau = kendalltau(
            [values[name] for name in methods], [means[name + TUNED] for name in methods]
        )
        rows.append(
            [
                f"[{setting.name}]({setting.name}.md)",
                where,
                names(methods),
                f"{tau.statistic:.2f} ({tau.pvalue:.2g})",
                *map(str, counts),
            ]
        )
        for (first, second), gap in zip(pairs, gaps, strict=True):
            if gap.mean < 0:
                pair = ", ".join(f"{in_code(name)} {values[name]:.1f}" for name in (first, second))
                other_order.append([setting.name, pair, f"**{gap}**" if gap.verdict else str(gap)])
    if not rows:
        return []
    head = ["setting", "published", "methods, in the printed order", "Kendall's tau (p)"]
    head += ["same order", "turned round", "cannot be told"]
    return [
        "",
        "## Published orders",
        "",
        "Pairs of methods that a paper prints accuracies of, for the same data set, net and"
        " concentration of the Dirichlet",
        "partition, but other numbers of clients, samples and rounds. In the same order, or turned"
        " round: significantly, after",
        "Holm's correction for the pairs of the setting. FedCPMD's printed accuracies seem to be"
        " those of clients that have just",
        "trained; here all methods have what is deployed to all clients.",
        "",
        *table(head, rows),
        "",
        "The pairs whose means have the other order here, in points; significant differences are in"
        " bold:",
        "",
        *table(["setting", "printed", "here, first minus second"], other_order),
    ]


def main() -> None:
    """Write the pages of a folder."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/board")
    only = sys.argv[2] if len(sys.argv) > 2 else None
    settings = []
    for archive in sorted(folder.glob(f"{only or '*'}.tar.xz")):
        try:
            setting = Setting(archive)
            text = page(setting)
        except (UserError, KeyError) as error:  # a KeyError names methods that are missing
            print(f"{printable(str(archive))} is left out: {one_line(str(error))}", file=sys.stderr)
            continue
        if not setting.is_new:
            settings.append(setting)
        (folder / f"{setting.name}.md").write_text(text, "utf-8")
        print(f"{printable(str(archive))}: {setting.runs} runs", file=sys.stderr)
    if only is None:
        (folder / "summary.md").write_text(summary(settings), "utf-8")


if __name__ == "__main__":
    main()
