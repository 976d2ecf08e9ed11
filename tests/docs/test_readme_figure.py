"""The first picture of the README says what `stagetree preview` counts for the README's own study."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tools import readme_figure


def test_the_figure_is_of_the_study_in_the_readme() -> None:
    shown = readme_figure.ladder()
    alt = f"{shown.unique} epochs are trained instead of {shown.alone}, which saves {shown.saved} %"
    assert alt in (readme_figure.ROOT / "README.md").read_text(encoding="utf-8")
    for theme in readme_figure.COLOURS:
        drawn = (readme_figure.INTO / f"cooldowns-{theme}.svg").read_text(encoding="utf-8")
        assert drawn == readme_figure.svg(shown, theme), "run python -m tools.readme_figure"


def test_the_bars_are_in_proportion_and_all_is_inside() -> None:
    shown = readme_figure.Ladder(40, (32, 34, 36, 38), 160, 55)
    root = ET.fromstring(readme_figure.svg(shown, "light"))
    rects = [each for each in root.iter() if each.tag.endswith("rect")][1:]
    whole, part = (float(each.attrib["width"]) for each in rects)
    assert abs(part / whole - 55 / 160) < 0.001
    for each in root.iter():
        for name, most in (("x", readme_figure.WIDTH), ("y", readme_figure.HEIGHT)):
            assert 0 <= float(each.attrib.get(name, 0)) <= most
