"""Drawing surfaces with one interface: axes of matplotlib or a figure of plotly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stagetree.errors import StagetreeError

BLUE, GRAY, RED = "#1f77b4", "#7f7f7f", "#d62728"
"""Names of colours are not the same for both."""


LOW, HIGH = (43, 58, 140), (240, 200, 40)
"""Dark blue and yellow, which the colour-blind can tell apart."""


def shade(share: float) -> str:
    """The colour of a value, from 0 to 1."""
    parts = (round(low + share * (high - low)) for low, high in zip(LOW, HIGH, strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)


@dataclass(frozen=True, slots=True)
class LineStyle:
    """How a line looks. name: for the legend; is_dotted: with a dot at each point; is_stepped: level up to the next."""

    width: float = 1.5
    color: str | None = None
    alpha: float = 1.0
    name: str = ""
    is_dotted: bool = False
    is_stepped: bool = False


class Drawing(Protocol):
    """Axes to draw on; `result` is what the user gets."""

    result: Any

    def line(self, x: Sequence[float], y: Sequence[float], look: LineStyle) -> None:
        """Through these points."""

    def dots(self, x: Sequence[float], y: Sequence[float], name: str) -> None:
        """A dot at each place."""

    def decay_warnings(self, x: Sequence[float], name: str) -> None:
        """A red cross at the lower edge at each x."""

    def upright(self, x: float) -> None:
        """A dotted line from below to above."""

    def bar(self, row: int, left: float, length: float, color: str) -> None:
        """From left to right, in a row of `rows`."""

    def rows(self, names: Sequence[str]) -> None:
        """Names along the y axis, from 0 on."""

    def columns(self, names: Sequence[str]) -> None:
        """Names along the x axis, from 0 on, and none along the other."""

    def use_log_scale(self) -> None:
        """Each doubling of x is as wide as the one before, from step 1 on."""

    def legend(self) -> None:
        """Show what was named."""

    def named(self, x: str, y: str, title: str) -> None:
        """What the axes and the whole are."""


class OnMatplotlib:
    """Draws on axes of matplotlib."""

    def __init__(self, axes: Any) -> None:
        self.result = axes

    def line(self, x: Sequence[float], y: Sequence[float], look: LineStyle) -> None:
        (line,) = self.result.plot(x, y, linewidth=look.width, color=look.color, alpha=look.alpha)
        line.set(marker="." if look.is_dotted else "", label=look.name or None)
        line.set_drawstyle("steps-post" if look.is_stepped else "default")

    def dots(self, x: Sequence[float], y: Sequence[float], name: str) -> None:
        self.result.plot(x, y, "o", alpha=0.6, label=name)

    def decay_warnings(self, x: Sequence[float], name: str) -> None:
        edge = self.result.get_xaxis_transform()
        self.result.plot(x, [0.02] * len(x), "x", color=RED, transform=edge, label=name)

    def upright(self, x: float) -> None:
        self.result.axvline(x, color=GRAY, linestyle=":", linewidth=0.8)

    def bar(self, row: int, left: float, length: float, color: str) -> None:
        self.result.barh(row, length, left=left, height=0.7, color=color, edgecolor="white")

    def rows(self, names: Sequence[str]) -> None:
        self.result.set_yticks(range(len(names)), names)

    def columns(self, names: Sequence[str]) -> None:
        self.result.set_xticks(range(len(names)), names)
        self.rows([])

    def use_log_scale(self) -> None:
        self.result.set_xscale("symlog", base=2, linthresh=1)

    def legend(self) -> None:
        self.result.legend()

    def named(self, x: str, y: str, title: str) -> None:
        self.result.set(xlabel=x, ylabel=y, title=title)


class OnPlotly:
    """Draws on a figure of plotly."""

    def __init__(self, figure: Any) -> None:
        self.result = figure

    def line(self, x: Sequence[float], y: Sequence[float], look: LineStyle) -> None:
        line = {"width": look.width, "color": look.color, "shape": "hv" if look.is_stepped else "linear"}
        mode = "lines+markers" if look.is_dotted else "lines"
        named = {"name": look.name, "showlegend": bool(look.name)}
        self.result.add_scatter(x=x, y=y, mode=mode, line=line, opacity=look.alpha, **named)

    def dots(self, x: Sequence[float], y: Sequence[float], name: str) -> None:
        self.result.add_scatter(x=x, y=y, mode="markers", opacity=0.6, name=name)

    def decay_warnings(self, x: Sequence[float], name: str) -> None:
        self.result.update_layout(yaxis2={"range": [0, 1], "overlaying": "y", "visible": False})
        look = {"symbol": "x", "color": RED}
        self.result.add_scatter(x=x, y=[0.02] * len(x), mode="markers", marker=look, name=name, yaxis="y2")

    def upright(self, x: float) -> None:
        self.result.add_vline(x, line={"color": GRAY, "dash": "dot", "width": 0.8})

    def bar(self, row: int, left: float, length: float, color: str) -> None:
        self.result.add_bar(
            x=[length], y=[row], base=[left], width=0.7, orientation="h", marker_color=color, showlegend=False
        )
        self.result.update_layout(barmode="overlay")

    def rows(self, names: Sequence[str]) -> None:
        self.result.update_yaxes(tickvals=list(range(len(names))), ticktext=list(names))

    def columns(self, names: Sequence[str]) -> None:
        texts = [name.replace("\n", "<br>") for name in names]
        self.result.update_xaxes(tickvals=list(range(len(names))), ticktext=texts)
        self.rows([])

    def use_log_scale(self) -> None:
        self.result.update_xaxes(type="log", dtick="D1")

    def legend(self) -> None:
        self.result.update_layout(showlegend=True)

    def named(self, x: str, y: str, title: str) -> None:
        self.result.update_layout(xaxis_title=x, yaxis_title=y, title=title)


def drawing_on(axes: Any | None) -> Drawing:
    """Draws on what is given, or on axes of its own: matplotlib's where that is there, or else plotly's.

    Raises `StagetreeError` where neither is there.
    """
    if axes is None:
        return _new()
    return OnPlotly(axes) if hasattr(axes, "add_scatter") else OnMatplotlib(axes)


def _new() -> Drawing:
    try:
        from matplotlib import pyplot
    except ImportError:
        pass
    else:
        return OnMatplotlib(pyplot.subplots(layout="constrained")[1])
    try:
        from plotly.graph_objects import Figure
    except ImportError:
        text = "a plot needs matplotlib or plotly: pip install 'stagetree[plots]', or pip install plotly"
        raise StagetreeError(text) from None
    return OnPlotly(Figure())
