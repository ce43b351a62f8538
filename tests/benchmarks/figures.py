# SPDX-License-Identifier: Apache-2.0
"""Writes a page of the figures that report.py has measured: tables in Markdown, and plots as SVG."""


def cell(value):
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(columns, rows):
    numbers = [all(not isinstance(row[i], str) for row in rows) for i in range(len(columns))]
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "|".join("---:" if number else "---" for number in numbers) + "|"
    for row in rows:
        yield "| " + " | ".join(map(cell, row)) + " |"


# More columns do not fit on a page.
MAX_COLUMNS = 7
PASSES = ("forward, ", "backward, ")

# The plots have a transparent ground. These colors have a contrast of 3 or more to light pages and to dark pages.
INK = "#767b82"
COLORS = ("#2a7fd6", "#cf6a12", "#2f8f4e", "#d64545", "#9a63d6", "#12908e", "#a8772a", "#b0568f")


def tables(columns, rows):
    """Yields the lines of one table. A wide table of both passes becomes one table for each pass."""
    if len(columns) <= MAX_COLUMNS or not all(column.startswith(PASSES) for column in columns[1:]):
        yield from table(columns, rows)
        return
    for name in PASSES:
        indices = [i for i, column in enumerate(columns) if i == 0 or column.startswith(name)]
        yield from (*(("",) if name != PASSES[0] else ()), f"{name.partition(',')[0].capitalize()}:", "")
        yield from table([columns[i].removeprefix(name) for i in indices], [[row[i] for i in indices] for row in rows])


def section(figure, picture):
    """Yields a figure as lines of Markdown. `picture` is the name of its plot, or None."""
    yield from (f"## {figure['title']}", "", figure["text"], "", *tables(figure["columns"], figure["rows"]), "")
    if picture:
        yield from (f"![{figure['title']}]({picture})", "")
    yield from (f"{figure['device']}, {figure['date']}:", "", "```sh", *figure["commands"], "```", "")


def beginning(report):
    """Yields the lines about the whole page, and the list of figures that are not in it."""
    machine = report["machine"]
    yield from (
        "# Figures", "",
        f"Written by `tests/benchmarks/report.py`, measured on {machine['date']} with {machine['build']}. Times are "
        "medians; FLOPs are 4 D forward and 10 D backward for each (query, key) pair.", "")
    if not machine["gpus"]:
        yield from ("There was no GPU: where a text speaks of GPUs, threads of the processor stand for them, and their "
                    "times say nothing about those of GPUs.", "")
    missing = [figure for figure in report["figures"] if "skipped" in figure]
    if missing:
        yield from ("Not measured on this machine, so not in this page:", "")
        yield from (f"- {figure['title']}: {figure['skipped']}." for figure in missing)
        yield ""


def draw(figure, path):
    """Draws the plot that figure["plot"] describes: the columns `series` over the column `x`. If `x` has numbers, it
    draws lines between logarithmic axes; if it has words, a group of bars for each word."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "annulus"  # equal numbers give equal files
    matplotlib.rcParams["svg.fonttype"] = "none"
    for part in ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"):
        matplotlib.rcParams[part] = INK
    matplotlib.rcParams["axes.prop_cycle"] = matplotlib.cycler(color=COLORS)
    from matplotlib import pyplot

    plot = figure["plot"]
    drawing, axes = pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")
    places = [row[plot["x"]] for row in figure["rows"]]
    bars = isinstance(places[0], str)
    for index, column in enumerate(plot["series"]):
        values = [row[column] for row in figure["rows"]]
        label = figure["columns"][column]
        if bars:
            width = 0.8 / len(plot["series"])
            left = [i + (index - (len(plot["series"]) - 1) / 2) * width for i in range(len(places))]
            axes.bar(left, [value or 0 for value in values], width, label=label)
        else:
            known = [(place, value) for place, value in zip(places, values) if value is not None]
            axes.plot(*zip(*known), marker="o", label=label) if known else None
    if bars:
        axes.set_xticks(range(len(places)), places, rotation=20, ha="right")
    else:
        axes.set(xscale="log", yscale="log", xlabel=figure["columns"][plot["x"]])
        axes.set_xticks(sorted(set(places)), [cell(place) for place in sorted(set(places))], rotation=20, ha="right")
        axes.minorticks_off()
    axes.set_ylabel(plot["label"])
    axes.grid(alpha=0.3)
    # The legend is above the axes, where it hides nothing.
    axes.legend(fontsize="small", loc="lower left", bbox_to_anchor=(0, 1), ncol=min(len(plot["series"]), 2),
                frameon=False)
    drawing.savefig(path, metadata={"Date": None}, transparent=True)
    pyplot.close(drawing)


def write_page(report, directory):
    """Writes directory/figures.md, and figures_NAME.svg for each figure that has a plot."""
    lines = list(beginning(report))
    for figure in report["figures"]:
        if "skipped" in figure:
            continue
        picture = f"figures_{figure['key']}.svg" if figure.get("plot") else None
        if picture:
            draw(figure, directory / picture)
        lines += section(figure, picture)
    (directory / "figures.md").write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")
