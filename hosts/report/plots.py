"""The report's plots, made with Bokeh: zoomable, in Okabe and Ito's colours, which colour-blind people distinguish."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

from bokeh.models import BasicTickFormatter, ColumnDataSource, HoverTool
from bokeh.plotting import figure

from hosts.commands.report import HostRecord
from hosts.report.verdict import PREFILL, WAITS, time_spent
from remote.shared.messages.history import Histogram, Point

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999933", "#888888")
DASHES = ("solid", "dashed", "dotted", "dotdash")
MOST_LINES = 16
"""Hosts that have a line in a plot. If there are more hosts, the page says that they have none."""
GREY = "#808080"
"""Colour of axes and text until the page's script sets it; readable on white and on black."""
TOOLS = "pan,box_zoom,wheel_zoom,reset,save"
_HEIGHT = 260


def over_time(
    records: Sequence[HostRecord], title: str, unit: str, value: Callable[[Point], float | None]
) -> Any | None:
    """Return a plot of `value` over time with a line for each host; None if no history has the value."""
    plot = _figure(title, unit, x_axis_type="datetime")
    styles = zip(cycle(COLOURS), _dashes(), strict=False)
    drawn = 0
    for record, (colour, dash) in zip(records[:MOST_LINES], styles, strict=False):
        found = [(point.at * 1000, told) for point in record.points if (told := value(point)) is not None]
        if not found:
            continue
        at, told_values = zip(*found, strict=True)
        source = ColumnDataSource({"at": list(at), "value": list(told_values), "host": [record.host] * len(found)})
        style: dict[str, Any] = {"color": colour, "line_dash": dash, "line_width": 2}
        plot.line("at", "value", source=source, legend_label=record.host, **style)
        drawn += 1
    if not drawn:
        return None
    tips = [("host", "@host"), ("time", "@at{%F %T}"), (unit, "@value{0,0.[00]}")]
    plot.add_tools(HoverTool(tooltips=tips, formatters={"@at": "datetime"}, mode="mouse"))
    return _with_legend(plot)


def timeline(records: Sequence[HostRecord]) -> Any | None:
    """Return a plot with a row for each host and a mark for every event, whose text appears under the pointer."""
    events = [(record.host, event) for record in records for event in record.events]
    if not events:
        return None
    hosts = [record.host for record in records if record.events]
    plot = _figure("Events", "", x_axis_type="datetime", y_range=list(reversed(hosts)), height=90 + 26 * len(hosts))
    kinds = sorted({event.kind for _, event in events})
    markers = cycle(("circle", "square", "triangle", "diamond", "inverted_triangle", "hex", "star", "plus"))
    for kind, colour, marker in zip(kinds, cycle(COLOURS), markers, strict=False):
        mine = [(host, event) for host, event in events if event.kind == kind]
        source = ColumnDataSource(
            {
                "at": [event.at * 1000 for _, event in mine],
                "host": [host for host, _ in mine],
                "what": [f"{event.subject}: {event.kind}: {event.text}" for _, event in mine],
            }
        )
        plot.scatter("at", "host", source=source, size=11, color=colour, marker=marker, legend_label=kind)
    tips = [("time", "@at{%F %T}"), ("", "@what")]
    plot.add_tools(HoverTool(tooltips=tips, formatters={"@at": "datetime"}))
    return _with_legend(plot)


def where_time_went(records: Sequence[HostRecord]) -> Any | None:
    """Return a plot with a bar for each host: seconds of prefill, and of each kind of wait."""
    spent = {record.host: time_spent(record) for record in records}
    hosts = [host for host, parts in spent.items() if parts]
    if not hosts:
        return None
    kinds = [PREFILL, *WAITS.values()]
    data: dict[str, list[Any]] = {"host": hosts}
    data |= {kind: [spent[host].get(kind, 0.0) / 60 for host in hosts] for kind in kinds}
    plot = _figure("Where time went", "minutes", y_range=list(reversed(hosts)), height=110 + 30 * len(hosts))
    plot.hbar_stack(
        kinds, y="host", height=0.7, color=list(islice(cycle(COLOURS), len(kinds))), source=ColumnDataSource(data),
        legend_label=kinds,
    )  # fmt: skip
    plot.add_tools(HoverTool(tooltips=[("host", "@host"), ("what", "$name"), ("minutes", "@$name{0,0.[0]}")]))
    plot.xaxis.axis_label, plot.yaxis.axis_label = "minutes", ""
    return _with_legend(plot)


def histogram(title: str, unit: str, parts: Sequence[tuple[str, Histogram]]) -> Any | None:
    """Return a histogram with an outline for each part, such as a host or a slot."""
    plot = _figure(title, "records")
    drawn = 0
    for (name, found), colour, dash in zip(parts[:MOST_LINES], cycle(COLOURS), _dashes(), strict=False):
        if not found.counts:
            continue
        drawn += 1
        left, right = found.edges[:-1], found.edges[1:]
        source = ColumnDataSource({"left": left, "right": right, "top": found.counts, "part": [name] * len(left)})
        plot.quad(
            left="left", right="right", top="top", bottom=0, source=source, fill_color=colour, fill_alpha=0.25,
            line_color=colour, line_dash=dash, legend_label=name,
        )  # fmt: skip
    if not drawn:
        return None
    plot.xaxis.axis_label = unit
    plot.add_tools(
        HoverTool(tooltips=[("", "@part"), (unit, "@left{0,0.[00]} to @right{0,0.[00]}"), ("records", "@top")])
    )
    return _with_legend(plot)


def _dashes() -> Any:
    """Return a solid line for the first eight hosts, then dashes, so that no two lines of a plot look alike."""
    return (dash for dash in cycle(DASHES) for _ in COLOURS)


def _figure(title: str, unit: str, *, height: int = _HEIGHT, **more: Any) -> Any:
    plot: Any = figure(title=title, height=height, sizing_mode="stretch_width", tools=TOOLS, **more)
    plot.title.text_color = GREY
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    plot.background_fill_alpha = plot.border_fill_alpha = 0.0
    plot.outline_line_color = GREY
    plot.yaxis.axis_label = unit
    for axis in (*plot.xaxis, *plot.yaxis):
        if isinstance(axis.formatter, BasicTickFormatter):
            axis.formatter.use_scientific = False
    for axis in plot.axis:
        axis.axis_label_text_color = axis.major_label_text_color = GREY
        axis.axis_line_color = axis.major_tick_line_color = GREY
        axis.minor_tick_line_color = None
    plot.grid.grid_line_color, plot.grid.grid_line_alpha = GREY, 0.25
    return plot


def _with_legend(plot: Any) -> Any:
    """Put the legend beside the plot, so that it hides no point. A click in the legend hides a line."""
    legend = plot.legend[0]
    plot.add_layout(legend, "right")
    legend.click_policy = "hide"
    legend.background_fill_alpha = 0.0
    legend.border_line_color, legend.label_text_color = None, GREY
    legend.label_text_font_size = "11px"
    return plot
