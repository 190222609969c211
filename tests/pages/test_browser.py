"""The page in a browser (F5): search, keys, light, dark, narrow and printed, ten thousand ops, and names that would like to be run."""

from __future__ import annotations

import json

import pytest

from aicf.pages import story
from aicf.pages.data import check_drawn
from aicf.pages.page import write

from .browser import Browser, found
from .support import hostile, page_of_many, trained

pytestmark = [pytest.mark.spec("F5"), pytest.mark.skipif(not found(), reason="no Chromium here: apt-get install chromium")]  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(found(), tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write(trained(), tmp_path_factory.mktemp("page") / "r.html", "mlp.py")


def test_search_and_keys_lead_to_regions(browser, page):
    browser.looks()
    browser.open(page)
    regions = trained()["regions"]
    wanted = [n for n, r in enumerate(regions) if "gelu" in r["region"]]
    shown = "Array.from(document.querySelectorAll('details.region:not(.away)'), (d) => Number(d.id.slice(1)))"
    for key in "/gelu":
        browser.key(key)
    assert browser.run("document.getElementById('search').value") == "gelu", "the first / goes to the search"
    browser.until("document.getElementById('found').textContent !== ''")
    named = browser.run(shown)
    assert set(wanted) <= set(named) and len(named) < len(regions)
    assert (
        browser.run("document.getElementById('found').textContent")
        == f"{len(named)} of {len(regions)} regions"
    )
    assert browser.run("document.getElementById('regions').getBoundingClientRect().top < innerHeight / 2")
    at = "Number(document.activeElement.closest('details.region')?.id.slice(1))"
    browser.key("Enter")
    assert browser.run(at) == named[0]
    browser.key("j")
    assert browser.run(at) == named[1]
    browser.key("k")
    browser.key("Enter")
    browser.until(f"document.querySelector('#r{named[0]} dl') !== null")  # filled when it is opened
    assert "chosen" in browser.run(f"document.querySelector('#r{named[0]} dl').textContent")
    browser.key("Escape")
    assert browser.run(shown) == list(range(len(regions)))
    assert browser.said == []


def test_a_click_on_a_box_or_a_bar_opens_the_region(browser, page):
    browser.looks()
    browser.open(page)
    for chart, n in (("#graph", 3), ("#timeline", 7), ("#roofline", 0)):
        click = f"document.querySelector('{chart} svg g[data-n=\"{n}\"]').dispatchEvent(new MouseEvent('click', {{bubbles: true}}))"
        browser.run(click)
        assert browser.run(f"document.querySelector('#r{n}').open"), chart
    browser.open(page, "#r5")
    assert browser.run("document.querySelector('#r5').open")


def test_it_is_light_dark_narrow_and_printed_without_losing_anything(browser, page):
    ground = "getComputedStyle(document.body).backgroundColor"
    for width in (390, 800, 1280, 2200):
        browser.looks(width)
        browser.open(page)
        assert browser.run("document.documentElement.scrollWidth") <= width, "what is wide scrolls by itself"
    assert browser.run(ground) == "rgb(255, 255, 255)"
    browser.key("t")
    assert browser.run(ground) == "rgb(18, 22, 29)"
    browser.looks(dark=True)
    browser.open(page)
    assert browser.run(ground) == "rgb(18, 22, 29)"
    ink = "getComputedStyle(document.querySelector('svg text')).fill"
    assert browser.run(ink) == "rgb(227, 232, 240)", "drawings take the colour of text"
    browser.looks(dark=True, media="print")
    assert browser.run(ground) == "rgb(255, 255, 255)" and browser.run(ink) == "rgb(0, 0, 0)"
    assert browser.run("getComputedStyle(document.querySelector('.tools')).display") == "none"


def test_ten_thousand_ops_are_there_in_seconds_and_searched_at_once(browser, tmp_path):
    """Two thousand take a fifth of it. The limits leave room for a busy machine: alone it takes 1.0 s and 0.3 s."""
    path = tmp_path / "many.html"
    path.write_text(page_of_many(), encoding="utf-8")
    browser.looks()
    assert browser.open(path) < 20
    browser.run("document.getElementById('search').focus()")
    browser.ask("Input.insertText", text="gelu_grad")
    assert browser.until("document.getElementById('found').textContent !== ''", 10) < 10
    browser.drawn()
    assert browser.said == []


def test_names_that_are_markup_are_shown_and_never_run(browser, tmp_path):
    """In the page, all of it opened; and what a notebook shows, where no policy of a page holds anything back."""
    spoilt = hostile(json.loads(json.dumps(trained())))
    check_drawn(spoilt)
    browser.looks()
    page = write(spoilt, tmp_path / "r.html", "<img src=x onerror=alert(1)>")
    (tmp_path / "n.html").write_text(
        f"<!doctype html><meta charset=utf-8><title>mine</title>{story.explanation(spoilt)}"
    )
    for path, at_least in ((page, len(spoilt["regions"])), (tmp_path / "n.html", 10)):
        browser.open(path)
        for _ in range(2):  # what was waiting in them may have more
            browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true })")
            browser.drawn()
        assert browser.run("document.querySelectorAll('details').length") > at_least
        assert (
            browser.run("document.querySelectorAll('img, iframe, object, a[href^=javascript]').length") == 0
        )
        assert browser.run("document.title") != "run" and browser.said == []
        assert "onerror=" in browser.run("document.body.textContent")
