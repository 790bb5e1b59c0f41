"""The page of ``aac report`` in a real browser: it works, it is readable, it asks for nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.conftest import Page
from tests.made_runs import HOSTILE, made_episode

pytestmark = pytest.mark.browser

TABS = ("Overview", "Curves", "Episodes", "Audit", "Recipe")
Open = Callable[..., Page]
FAINT = """() => {
  const parts = (colour) => {
    const found = colour.match(/[\\d.]+/g).map(Number);
    return found.length < 4 ? [...found, 1] : found;
  };
  const light = ([r, g, b]) => [r, g, b]
    .map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = parts(getComputedStyle(node).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest("script, noscript")) continue;
    const style = getComputedStyle(node);
    const ink = parts(node.closest("svg") ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push(`${node.textContent.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return found;
}"""
"""Texts whose contrast is below 4.5 (WCAG 2.1, 1.4.3)."""
SETTLED = """() => {
  const ink = getComputedStyle(document.querySelector("footer")).color;
  return [...document.querySelectorAll("[role=tabpanel]:not([hidden]) .plot")].every((plot) => {
    const svg = plot.querySelector(".main-svg");
    const tick = plot.querySelector(".xtick text");
    return !svg || (svg.clientWidth <= plot.clientWidth && getComputedStyle(tick).fill === ink);
  });
}"""
"""Every curve has followed the width of its place and the scheme."""
TOO_WIDE = "() => document.documentElement.scrollWidth - window.innerWidth"


@pytest.mark.parametrize("name", ["whole/report.html", "several.html"])
def test_readable_at_any_width_in_either_scheme(name: str, runs: Path, opened: Open) -> None:
    page = opened(runs / name)
    for tab in TABS:
        page.tab(tab).click()
        if tab in ("Overview", "Curves"):
            page.drawn()
        if tab == "Episodes":
            for kind in ("prompt", "view", "mask"):
                page.it.locator(f"#reader details.{kind} > summary").first.click()
        for width, scheme in itertools.product((400, 1600), ("light", "dark")):
            page.it.set_viewport_size({"width": width, "height": 900})
            page.it.emulate_media(color_scheme=scheme)
            page.it.wait_for_function(SETTLED)
            assert page.it.evaluate(TOO_WIDE) <= 0, (tab, width)
            assert page.it.evaluate(FAINT) == [], (tab, width, scheme)
    page.quiet()


def test_what_changes_while_a_tab_is_closed_is_made_good(runs: Path, opened: Open) -> None:
    page = opened(runs / "whole/report.html", 1600)
    page.drawn()
    line = "document.querySelector('.plot .scatterlayer .trace .lines path')"
    before = page.it.evaluate(f"() => getComputedStyle({line}).stroke")
    page.tab("Recipe").click()
    page.it.set_viewport_size({"width": 400, "height": 900})
    page.it.emulate_media(color_scheme="dark")
    page.tab("Overview").click()
    page.it.wait_for_function(f"before => getComputedStyle({line}).stroke !== before", arg=before)
    page.it.wait_for_function(SETTLED)
    assert page.it.evaluate(TOO_WIDE) <= 0
    page.quiet()


def test_every_tab_opens_by_click(runs: Path, opened: Open) -> None:
    page = opened(runs / "whole/report.html")
    assert page.panel() == "panel-overview"
    for tab in TABS:
        page.tab(tab).click()
        assert page.panel() == page.tab(tab).get_attribute("aria-controls")
        assert page.tab(tab).get_attribute("aria-selected") == "true"
        assert page.it.locator("[role=tab][aria-selected=true]").count() == 1
    page.quiet()


def test_every_tab_opens_by_keyboard(runs: Path, opened: Open) -> None:
    page = opened(runs / "whole/report.html")
    keys = page.it.keyboard
    keys.press("Tab")  # of the tabs only the chosen one is a stop
    focused = "() => document.activeElement.textContent"
    assert page.it.evaluate(focused) == "Overview"
    for key, expected in [
        *(("ArrowRight", name) for name in (*TABS[1:], TABS[0])),
        ("ArrowLeft", "Recipe"),
        ("ArrowLeft", "Audit"),
        ("Home", "Overview"),
        ("End", "Recipe"),
    ]:
        keys.press(key)
        assert page.it.evaluate(focused) == expected
        assert page.panel() == page.tab(expected).get_attribute("aria-controls")
    keys.press("Tab")
    assert page.it.evaluate("() => document.activeElement.id") == "panel-recipe"
    page.quiet()


def test_curves_are_drawn_with_their_alarms_and_can_be_hidden(runs: Path, opened: Open) -> None:
    page = opened(runs / "whole/report.html", place="#curves")
    page.drawn(2)
    kl = page.it.locator("figure", has_text="KL to the SFT actor").locator("visible=true").first
    kl.scroll_into_view_if_needed()
    kl.locator(".shapelayer path").wait_for(state="attached")
    assert kl.locator(".points path").count() >= 1  # the triangle on the line
    assert "iteration 4: kl_surge" in kl.inner_text()
    success = page.it.locator("#panel-curves figure").first
    lines = success.locator(".scatterlayer .trace .lines path")
    assert lines.count() == 2
    success.get_by_role("button", name="held out").click()
    page.it.wait_for_function(
        "n => n.querySelectorAll('.lines path').length === 1", arg=success.element_handle()
    )
    assert success.get_by_role("button", name="held out").get_attribute("aria-pressed") == "false"
    page.quiet()


def test_prompt_view_and_tokens_unfold(runs: Path, opened: Open) -> None:
    page = opened(runs / "whole/report.html", place="#episodes/0-training-6-0")
    made = made_episode(50)
    page.it.locator("#reader h2", has_text=made.goal.strip()).wait_for()
    turn = page.it.locator("#reader .turn").nth(1)
    assert turn.locator("details[open]").count() == 0
    for kind in ("prompt", "view", "mask"):
        turn.locator(f"details.{kind} > summary").press("Enter")
    state = made.turns[1].messages[0]["content"]
    assert turn.locator(".prompt > pre").text_content() == state
    assert "facts: gold answer: 50" in (turn.locator(".view > pre").text_content() or "")
    assert turn.locator(".mask .masked").text_content() == state
    chosen = turn.locator(".mask .tokens mark")
    assert "".join(chosen.all_text_contents()) == made.turns[1].action.text
    assert chosen.count() == len(made.turns[1].action_ids)
    colours = chosen.evaluate_all(
        "all => [...new Set(all.map(n => getComputedStyle(n).backgroundColor))]"
    )
    assert len(colours) == 3  # likely, likelier than not, unlikely
    assert "the only ones it was trained on" in turn.inner_text()
    assert turn.locator("dl").first.inner_text().split() == [
        *("reward", "+0.05", "value", "0.60", "review", "+0.01", "advantage", "+0.20")
    ]
    page.quiet()


def test_filters_narrow_the_lists(runs: Path, opened: Open) -> None:
    page = opened(runs / "whole/report.html", place="#episodes")
    page.it.locator("#episode-list button").first.wait_for()
    assert len(page.listed()) == 12
    page.it.get_by_label("outcome", exact=True).select_option("no success")
    assert len(page.listed()) == 4
    page.it.get_by_label("from", exact=True).select_option("training, first iteration")
    assert page.listed() == ["How many orders has shop 3?"]
    assert page.it.locator("#episode-count").text_content() == "1 of 12"
    page.it.get_by_label("goal or words", exact=True).fill("no such words")
    assert page.listed() == [] and "No episode matches." in page.it.locator("#reader").inner_text()

    page.tab("Audit").click()
    rows = page.it.locator("#audit-rows tr:visible")
    assert rows.count() == 4
    page.it.get_by_label("verdict", exact=True).select_option("bad")
    assert rows.count() == 1
    page.it.get_by_label("verdict", exact=True).select_option("all")
    page.it.get_by_label("goal or reason", exact=True).fill("shop 104")
    assert rows.count() == 1
    rows.get_by_role("button").click()  # leads to the episode, whatever was filtered there
    assert page.panel() == "panel-episodes"
    page.it.locator("#reader h2", has_text="shop 104").wait_for()
    assert len(page.listed()) == 12
    page.quiet()


def test_several_runs_lie_over_each_other(runs: Path, opened: Open) -> None:
    page = opened(runs / "several.html")
    page.drawn(3)
    figure = page.it.locator("#panel-overview figure").first
    assert figure.locator(".scatterlayer .trace .lines path").count() == 3
    legend = figure.locator(".legend button").all_inner_texts()
    assert legend[:2] == ["quickstart, seed 0", "quickstart, seed 1"] and len(legend) == 3
    heads = page.it.locator(".headline thead th").all_inner_texts()
    assert heads[1:4] == legend
    page.tab("Recipe").click()
    differ = page.it.locator("#panel-recipe table").first
    assert differ.locator("tbody tr").all_inner_texts() == ["seed\t0\t1"]
    page.tab("Episodes").click()
    page.it.get_by_label("run", exact=True).select_option("quickstart, seed 1")
    assert len(page.listed()) == 12
    page.quiet()


def test_hostile_words_are_shown_and_do_nothing(runs: Path, opened: Open) -> None:
    page = opened(runs / "hostile/report.html")
    page.drawn()
    for tab in TABS:
        page.tab(tab).click()
    page.tab("Episodes").click()
    for kind in ("prompt", "view", "mask"):
        page.it.locator(f"#reader details.{kind} > summary").first.click()
    shown = page.it.locator("#reader .turn").first.inner_text()
    assert shown.count(HOSTILE) >= 4  # said, seen, prompt, tokens
    page.tab("Curves").click()
    dropped = page.it.locator("#panel-curves figure", has_text="Dropped episodes")
    dropped.scroll_into_view_if_needed()
    dropped.locator(".trace").first.wait_for(state="attached")
    assert HOSTILE in dropped.inner_text()
    box = dropped.locator(".nsewdrag").bounding_box()
    assert box is not None
    for share in (0.4, 0.6):
        page.it.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] * share)
    dropped.locator(".hoverlayer text").first.wait_for(state="attached")
    assert HOSTILE in "".join(dropped.locator(".hoverlayer text").all_text_contents())
    assert page.it.evaluate("() => window.hacked") is None
    assert page.it.locator("img, iframe, object, a, form").count() == 0
    assert page.it.locator("script").count() == 5  # four of the page, and the library
    page.quiet()


def test_the_policy_refuses_what_the_page_does_not_know(runs: Path, opened: Open) -> None:
    """A script or picture that found its way in would not run or be fetched."""
    page = opened(runs / "whole/report.html")
    page.it.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.hacked = 1";
          const picture = document.createElement("img");
          picture.src = "https://example.org/x.png";
          document.body.append(script, picture);
        }"""
    )
    assert page.it.evaluate("() => window.hacked") is None
    assert (
        page.it.evaluate("() => fetch('https://example.org').then(() => 'fetched', () => 'failed')")
        == "failed"
    )
    assert any("Content Security Policy" in words for words in page.said)
    assert set(page.refused) == {"csp"} and len(page.refused) == len(page.asked) - 1
