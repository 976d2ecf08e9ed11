"""One interface to draw on matplotlib axes or on a plotly figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stagetree.errors import StagetreeError

BLUE, GRAY, RED = "#1f77b4", "#7f7f7f", "#d62728"
"""As hex codes, because the two libraries name colours differently."""

LOW, HIGH = (43, 58, 140), (240, 200, 40)
"""Dark blue and yellow, as RGB. Colour-blind readers can distinguish them."""


def shade(share: float) -> str:
    """The colour between `LOW` and `HIGH` for a value from 0 to 1."""
    parts = (round(low + share * (high - low)) for low, high in zip(LOW, HIGH, strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)


@dataclass(frozen=True, slots=True)
class LineStyle:
    """The style of a line. name: for the legend; is_dotted: with a dot at each point; is_stepped: drawn as steps."""

    width: float = 1.5
    color: str | None = None
    alpha: float = 1.0
    name: str = ""
    is_dotted: bool = False
    is_stepped: bool = False


class Drawing(Protocol):
    """Draws on `result`, the axes or figure that is returned to the user."""

    result: Any

    def line(self, x: Sequence[float], y: Sequence[float], look: LineStyle) -> None:
        """Draw a line through points."""

    def dots(self, x: Sequence[float], y: Sequence[float], name: str) -> None:
        """Draw a dot at each point."""

    def crosses(self, x: Sequence[float], name: str) -> None:
        """Draw a red cross at the lower edge at each x."""

    def vertical_line(self, x: float) -> None:
        """Draw a dotted line over the whole height."""

    def bar(self, row: int, left: float, length: float, color: str) -> None:
        """Draw a horizontal bar in a row of `rows`."""

    def rows(self, names: Sequence[str]) -> None:
        """Label the rows 0, 1, ... of the y axis."""

    def columns(self, names: Sequence[str]) -> None:
        """Label the columns 0, 1, ... of the x axis, and leave the y axis without labels."""

    def use_log_scale(self) -> None:
        """Scale x logarithmically, from step 1 on."""

    def legend(self) -> None:
        """Show the names of lines and dots."""

    def set_titles(self, x: str, y: str, title: str) -> None:
        """Set the titles of the axes and of the whole drawing."""


class MatplotlibDrawing:
    """Draws on matplotlib axes."""

    def __init__(self, axes: Any) -> None:
        self.result = axes

    def line(self, x: Sequence[float], y: Sequence[float], look: LineStyle) -> None:
        (line,) = self.result.plot(x, y, linewidth=look.width, color=look.color, alpha=look.alpha)
        line.set(marker="." if look.is_dotted else "", label=look.name or None)
        line.set_drawstyle("steps-post" if look.is_stepped else "default")

    def dots(self, x: Sequence[float], y: Sequence[float], name: str) -> None:
        self.result.plot(x, y, "o", alpha=0.6, label=name)

    def crosses(self, x: Sequence[float], name: str) -> None:
        edge = self.result.get_xaxis_transform()
        self.result.plot(x, [0.02] * len(x), "x", color=RED, transform=edge, label=name)

    def vertical_line(self, x: float) -> None:
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

    def set_titles(self, x: str, y: str, title: str) -> None:
        self.result.set(xlabel=x, ylabel=y, title=title)


class PlotlyDrawing:
    """Draws on a plotly figure."""

    def __init__(self, figure: Any) -> None:
        self.result = figure

    def line(self, x: Sequence[float], y: Sequence[float], look: LineStyle) -> None:
        line = {"width": look.width, "color": look.color, "shape": "hv" if look.is_stepped else "linear"}
        mode = "lines+markers" if look.is_dotted else "lines"
        named = {"name": look.name, "showlegend": bool(look.name)}
        self.result.add_scatter(x=x, y=y, mode=mode, line=line, opacity=look.alpha, **named)

    def dots(self, x: Sequence[float], y: Sequence[float], name: str) -> None:
        self.result.add_scatter(x=x, y=y, mode="markers", opacity=0.6, name=name)

    def crosses(self, x: Sequence[float], name: str) -> None:
        self.result.update_layout(yaxis2={"range": [0, 1], "overlaying": "y", "visible": False})
        look = {"symbol": "x", "color": RED}
        self.result.add_scatter(x=x, y=[0.02] * len(x), mode="markers", marker=look, name=name, yaxis="y2")

    def vertical_line(self, x: float) -> None:
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

    def set_titles(self, x: str, y: str, title: str) -> None:
        self.result.update_layout(xaxis_title=x, yaxis_title=y, title=title)


def drawing_on(axes: Any | None) -> Drawing:
    """A drawing on the given axes or figure; by default on new matplotlib axes or, without matplotlib, plotly figures.

    Raises `StagetreeError` if neither library is installed.
    """
    if axes is not None:
        return PlotlyDrawing(axes) if hasattr(axes, "add_scatter") else MatplotlibDrawing(axes)
    try:
        from matplotlib import pyplot
    except ImportError:
        pass
    else:
        return MatplotlibDrawing(pyplot.subplots(layout="constrained")[1])
    try:
        from plotly.graph_objects import Figure
    except ImportError:
        text = "a plot needs matplotlib or plotly: pip install 'stagetree[plots]', or pip install plotly"
        raise StagetreeError(text) from None
    return PlotlyDrawing(Figure())
