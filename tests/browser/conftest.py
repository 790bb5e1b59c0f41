"""A headless Chromium of this machine, and pages written by the real command."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aacli.app import app
from tests.made_runs import HOSTILE, made_pipeline, made_rl

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--no-sandbox",  # as root there is none
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser, with a profile of its own that leaves with it."""
    from playwright.sync_api import sync_playwright

    found = [os.environ.get("CHROMIUM"), *map(shutil.which, NAMES)]
    path = next(filter(None, found), None)
    assert path, "no Chromium: apt-get install chromium, or CHROMIUM=/path/to/it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=QUIET)
        yield browser
        browser.close()


class Page:
    """A page in the browser with all that it says and asks for."""

    def __init__(self, browser: Any, file: Path, width: int, scheme: str, place: str) -> None:
        screen = {"width": width, "height": 900}
        self.context = browser.new_context(viewport=screen, color_scheme=scheme)
        self.it = self.context.new_page()
        self.it.set_default_timeout(10_000)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.refused: list[str] = []
        self.it.on("console", lambda message: self.said.append(message.text))
        self.it.on("pageerror", lambda error: self.said.append(str(error)))
        self.it.on("dialog", lambda dialog: self.said.append(f"dialog {dialog.message}"))
        self.it.on("request", lambda request: self.asked.append(request.url))
        self.it.on("requestfailed", lambda request: self.refused.append(request.failure))
        self.url = file.resolve().as_uri()
        self.it.goto(self.url + place)

    def quiet(self) -> None:
        """Nothing was said, and nothing but the file itself was asked for."""
        assert self.said == []
        assert {address.split("#")[0] for address in self.asked} == {self.url}

    def drawn(self, count: int = 1) -> None:
        """Wait until so many curves of the open tab are there."""
        self.it.locator("[role=tabpanel]:not([hidden]) .plot .scatterlayer .trace").nth(
            count - 1
        ).wait_for(state="attached")

    def tab(self, name: str) -> Any:
        """The tab of this name."""
        return self.it.get_by_role("tab", name=name, exact=True)

    def panel(self) -> str:
        """The id of the one panel that is open."""
        (found,) = self.it.locator("[role=tabpanel]:not([hidden])").all()
        return str(found.get_attribute("id"))

    def listed(self) -> list[str]:
        """The goals in the list of episodes."""
        return list(self.it.locator("#episode-list .goal").all_inner_texts())


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Page]]:
    """Open a file in the browser, at a width and in a scheme."""
    pages: list[Page] = []

    def open_page(file: Path, width: int = 1200, scheme: str = "light", place: str = "") -> Page:
        pages.append(Page(chromium, file, width, scheme, place))
        return pages[-1]

    yield open_page
    for page in pages:
        page.context.close()


def report(*words: Any) -> None:
    """``aac report WORDS...`` to its end."""
    done = CliRunner().invoke(app, ["report", *map(str, words)])
    assert done.exit_code == 0, done.stderr


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders ``whole`` (a pipeline), ``hostile``, ``second`` and ``open``, each with its page."""
    root = tmp_path_factory.mktemp("runs")
    report(made_pipeline(root / "whole"))
    report(made_rl(root / "hostile", said=HOSTILE))
    report(
        root / "hostile",
        made_rl(root / "second", seed=1, alarms=()),
        made_rl(root / "open", seed=2, finished=False),
        "--output",
        root / "several.html",
    )
    return root
