"""A film as a file: an SVG that a browser plays, a GIF, or its last frame as a PNG.

One style sheet has the colours and the motion of the SVG. Viewers without animation, or with reduced motion, show the
last frame. The page drops that sheet and shows the groups itself.
"""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from itertools import groupby
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from app.service.views.film import FRAMES, LEFT, RIGHT, SECONDS, TOP, WIDTH, Figure, Scene

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

LIGHT = {
    "paper": "#fdfdfc",
    "ink": "#1d2126",
    "soft": "#5c6570",
    "line": "#dfe3e8",
    "accent": "#1f63d0",
    "bad": "#c23a00",
}
DARK = {
    "paper": "#14171b",
    "ink": "#e6e9ed",
    "soft": "#a0a9b4",
    "line": "#2b3138",
    "accent": "#78a9ff",
    "bad": "#ff8a5c",
}
SLIDE = WIDTH - LEFT - RIGHT
"""The width of the time axis, in pixels."""

CHARACTERS = 118
"""The characters in a line of a caption."""

GIF_FRAMES = 60
HOLD_MILLISECONDS = 4000
LARGER = 2
"""GIF frames are drawn larger by this factor and scaled down, for smooth lines."""

CARD = (1200, 630)
"""The size of a link's preview picture, in the proportions that sites do not crop."""


def replace_texts(scene: Scene, word: Callable[[str], str]) -> Scene:
    """The film with a function applied to each text."""
    drawn = [each._replace(text=word(each.text)) if each.text else each for each in scene.drawn]
    captions = [(frame, word(text)) for frame, text in scene.captions]
    return replace(scene, title=word(scene.title), drawn=drawn, captions=captions)


def svg(scene: Scene) -> str:
    """The film as one SVG document."""
    bottom = scene.height
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom:g}" data-frames="{FRAMES}"'
    head += f' data-seconds="{SECONDS}" font-family="system-ui, sans-serif" role="img">'
    title = escape(scene.title)
    (top, low), wide = scene.lanes, f'width="{WIDTH - LEFT}"'
    cover = f'<rect class="cover paper" x="{LEFT}" y="{top - 2:g}" {wide} height="{low - top + 4:g}" '
    cover += f'fill="currentColor" data-slide="{SLIDE}"/>'
    parts = [
        head,
        f"<title>{title}</title><style>{_style()}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{bottom:g}" fill="currentColor"/>',
        f'<text class="ink" x="{LEFT}" y="24" font-size="15" font-weight="600" fill="currentColor">{title}</text>',
    ]
    ordered = sorted(scene.drawn, key=lambda each: (each.frame, each.until is not None))
    for (frame, until), group in groupby(ordered, key=lambda each: (each.frame, each.until)):
        inside = "".join(_shapes(list(group), scene.faint))
        kind = "" if frame == 0 else f' class="{"g" if until else "f"} f{frame}" data-frame="{frame}"'
        kind += f' data-until="{until}"' if until else ""
        parts.append(f"<g{kind}>{inside}</g>")
        parts += [cover] if frame == 0 else []
    parts += [_caption(frame, text) for frame, text in scene.captions]
    return "\n".join([*parts, "</svg>\n"])


def _style() -> str:
    frames = "".join(f".f{frame}{{animation-delay:{frame * SECONDS / FRAMES:.2f}s}}" for frame in range(1, FRAMES + 1))
    on = "from{visibility:hidden}to{visibility:visible}"
    flash = "0%{visibility:hidden}1%,99%{visibility:visible}100%{visibility:hidden}"
    slide = f"from{{transform:none;visibility:visible}}to{{transform:translateX({SLIDE}px);visibility:visible}}"
    return (
        _colours(LIGHT)
        + f"@media(prefers-color-scheme:dark){{{_colours(DARK)}}}.cover,.g{{visibility:hidden}}"
        + "@media(prefers-reduced-motion:no-preference){.f{animation:on 1ms both}.g{animation:flash .7s both}"
        + f".cover{{animation:slide {SECONDS}s linear}}{frames}}}"
        + f"@keyframes on{{{on}}}@keyframes flash{{{flash}}}@keyframes slide{{{slide}}}"
    )


def _colours(palette: Mapping[str, str]) -> str:
    return "".join(f".{role}{{color:{colour}}}" for role, colour in palette.items())


def _shapes(drawn: list[Figure], faint: float) -> Iterator[str]:
    """Figures of one look are joined into one path, which keeps files of thousands of trials small."""
    paths = defaultdict[tuple[str, str, float], list[str]](list)
    for each in drawn:
        if each.kind == "text":
            x, y = each.points[0]
            yield (
                f'<text class="{each.role}" x="{x:.1f}" y="{y:.1f}" font-size="{each.width:g}" text-anchor="end" '
                f'fill="currentColor">{escape(each.text)}</text>'
            )
        else:
            paths[each.kind, each.role, each.width].append(_path(each))
    for (kind, role, width), parts in paths.items():
        look = 'fill="currentColor"' if kind in ("rect", "star") else _stroke(kind, role, width, faint)
        yield f'<path class="{role}" d="{"".join(parts)}" {look}/>'


def _stroke(kind: str, role: str, width: float, faint: float) -> str:
    wide = {"dot": 2 * width, "cross": width / 2, "ring": 2.5}.get(kind, width)
    fade = f' stroke-opacity="{faint:.2f}"' if kind == "line" and role == "soft" else ""
    return f'fill="none" stroke="currentColor" stroke-width="{wide:g}" stroke-linecap="round"{fade}'


def _path(each: Figure) -> str:
    if each.kind == "line":
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in each.points)
    x, y = each.points[0]
    size = each.width
    match each.kind:
        case "rect":
            right, low = each.points[1]
            return f"M{x:.1f} {y:.1f}H{right:.1f}V{low:.1f}H{x:.1f}z"
        case "cross":
            return (
                f"M{x - size:.1f} {y - size:.1f}l{2 * size:g} {2 * size:g}m0 {-2 * size:g}l{-2 * size:g} {2 * size:g}"
            )
        case "ring":
            half = f"a{size:g} {size:g} 0 1 0"
            return f"M{x - size:.1f} {y:.1f}{half} {2 * size:g} 0{half} {-2 * size:g} 0"
        case "star":
            return "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in _star(x, y, size)) + "z"
        case _:
            return f"M{x:.1f} {y:.1f}h0"


def _star(x: float, y: float, size: float) -> list[tuple[float, float]]:
    turns = [(number * math.pi / 5 - math.pi / 2, size if number % 2 == 0 else 0.42 * size) for number in range(10)]
    return [(x + radius * math.cos(turn), y + radius * math.sin(turn)) for turn, radius in turns]


def _caption(frame: int, text: str) -> str:
    """Up to two lines, on a background that hides the caption before."""
    lines = "".join(
        f'<text class="soft" x="{LEFT}" y="{45 + 18 * number}" font-size="14" fill="currentColor">{escape(line)}</text>'
        for number, line in enumerate(_lines(text))
    )
    paper = f'<rect class="paper" y="29" width="{WIDTH}" height="{TOP - 17 - 29}" fill="currentColor"/>'
    return f'<g class="f f{frame}" data-frame="{frame}">{paper}{lines}</g>'


def _lines(text: str) -> list[str]:
    return textwrap.wrap(text, CHARACTERS, max_lines=2, placeholder=" ...")


# ------------------------------------------------------------------------------------------------ the GIF and the PNG


def gif(scene: Scene) -> bytes:
    """The film as a looping GIF in light colours. Raises ImportError without Pillow."""
    from PIL import Image, ImageDraw

    base, pen = _paper(scene)
    pictures: list[Any] = []
    for number in range(GIF_FRAMES + 1):
        frame, before = number * FRAMES // GIF_FRAMES, (number - 1) * FRAMES // GIF_FRAMES
        for each in scene.drawn:
            if (
                (before < each.frame <= frame or number == each.frame == 0)
                and each.until is None
                and each.kind != "rect"
            ):
                _draw(pen, each, scene.faint)
        picture = base.copy()
        _finish(ImageDraw.Draw(picture), scene, frame)
        pictures.append(picture.resize((WIDTH, round(scene.height)), Image.Resampling.LANCZOS))
    palette = pictures[-1].quantize(64)
    shown = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    times = [round(SECONDS * 1000 / GIF_FRAMES)] * GIF_FRAMES + [HOLD_MILLISECONDS]
    into = BytesIO()
    shown[0].save(into, "GIF", save_all=True, append_images=shown[1:], duration=times, loop=0)
    return into.getvalue()


def png(scene: Scene) -> bytes:
    """The film's last frame in light colours, in the size of `CARD`. Raises ImportError without Pillow."""
    from PIL import Image, ImageOps

    picture, pen = _paper(scene)
    for each in scene.drawn:
        if each.until is None and each.kind != "rect":
            _draw(pen, each, scene.faint)
    _finish(pen, scene, FRAMES)
    into = BytesIO()
    ImageOps.pad(picture, CARD, Image.Resampling.LANCZOS, color=LIGHT["paper"]).save(into, "PNG", optimize=True)
    return into.getvalue()


def _paper(scene: Scene) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """A blank image with the title, and its pen."""
    from PIL import Image, ImageDraw

    base = Image.new("RGB", (WIDTH * LARGER, round(scene.height) * LARGER), LIGHT["paper"])
    pen = ImageDraw.Draw(base)
    _write(pen, LEFT, 10, scene.title, 15, "ink")
    return base, pen


def _finish(pen: ImageDraw.ImageDraw, scene: Scene, frame: int) -> None:
    """Draw the parts that belong to one frame: the slots up to then, promotions, and the caption."""
    edge = LEFT + frame / FRAMES * (WIDTH - LEFT - RIGHT)
    for each in scene.drawn:
        if each.kind == "rect" and each.points[0][0] < edge:
            (left, top), (right, low) = each.points
            _draw(pen, each._replace(points=((left, top), (min(right, edge), low))), scene.faint)
        elif each.until is not None and each.frame <= frame < each.until:
            _draw(pen, each, scene.faint)
    text = next((text for at, text in reversed(scene.captions) if at <= frame), "")
    for number, line in enumerate(_lines(text)):
        _write(pen, LEFT, 31 + 18 * number, line, 14, "soft")


def _draw(pen: ImageDraw.ImageDraw, each: Figure, faint: float) -> None:
    points = [(x * LARGER, y * LARGER) for x, y in each.points]
    (x, y), size = points[0], each.width * LARGER
    colour = LIGHT[each.role]
    match each.kind:
        case "line":
            colour = _mix_with_paper(colour, faint) if each.role == "soft" else colour
            pen.line(points, fill=colour, width=max(1, round(size)), joint="curve")
        case "rect":
            pen.rectangle([points[0], (max(x, points[1][0]), points[1][1])], fill=colour)
        case "star":
            pen.polygon(_star(x, y, size), fill=colour)
        case "ring":
            pen.ellipse([x - size, y - size, x + size, y + size], outline=colour, width=5)
        case "cross":
            for way in (1, -1):
                pen.line([(x - size, y - way * size), (x + size, y + way * size)], fill=colour, width=round(size / 2))
        case "text":
            _write(pen, each.points[0][0], each.points[0][1] - each.width, each.text, each.width, each.role, "ra")
        case _:
            pen.ellipse([x - size, y - size, x + size, y + size], fill=colour)


def _write(pen: ImageDraw.ImageDraw, x: float, y: float, text: str, size: float, role: str, anchor: str = "la") -> None:
    from PIL import ImageFont

    font = ImageFont.load_default(size * LARGER)
    pen.text((x * LARGER, y * LARGER), text, fill=LIGHT[role], font=font, anchor=anchor)


def _mix_with_paper(colour: str, share: float) -> str:
    """Blend a colour with the paper. share: the colour's part."""
    parts = [(int(colour[at : at + 2], 16), int(LIGHT["paper"][at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(of * share + paper * (1 - share)):02x}" for of, paper in parts)
