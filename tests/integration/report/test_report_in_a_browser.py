"""The page in a real browser: Chromium, headless, at phone and desk width, light and dark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import Plan, write_run

from odb_example.report.compare import compare_runs

selenium = pytest.importorskip("selenium", reason="selenium is in the test extra")

from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not (BROWSER and DRIVER), reason="no browser: apt-get install chromium chromium-driver (CI does)"
    ),
]
SWITCHES = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
HOSTILE = '<script>document.title="taken"</script><img src="http://example.invalid/"> \u202etxet ' + "W" * 10_000
WIDTHS, SCHEMES = (390, 1440), ("light", "dark")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = Options()
    options.binary_location = str(BROWSER)
    for switch in (*SWITCHES, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The kinds of page there are, by name."""
    root = tmp_path_factory.mktemp("pages")
    odb = write_run(root / "runs" / "odb-enable", Plan())
    standard = write_run(root / "runs" / "standard-none", Plan(loader="standard", speed=1.0, loss=1.03, skill=0.4))
    hostile = [
        write_run(
            root / "hostile" / name, Plan(loader=name.split("-")[0], question=HOSTILE, source=HOSTILE, skill=skill)
        )
        for name, skill in (("odb-enable", 0.5), ("standard-none", 0.1))
    ]
    short = write_run(root / "short" / "odb-without-benchmark", Plan(), parts=("training",))
    kinds = {"two runs": [odb, standard], "hostile": hostile, "one run": [odb], "three runs": [odb, standard, short]}
    for name, runs in kinds.items():
        compare_runs(runs, root / name)
    return {name: root / name / "report.html" for name in kinds}


def _open(browser: webdriver.Chrome, page: Path, width: int, scheme: str) -> list[str]:
    """Show the page; returns the addresses it asked for, its own left out."""
    browser.get("about:blank")
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(page.as_uri())
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [address for address in asked if address != page.as_uri() and not address.startswith("data:")]


def _measure(browser: webdriver.Chrome, script: str) -> Any:
    return browser.execute_script(f"return {script}")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["two runs", "hostile", "one run", "three runs"])
def test_the_page_shows_whole_without_error_or_request(
    kind: str, width: int, scheme: str, browser: webdriver.Chrome, pages: dict[str, Path]
) -> None:
    asked = _open(browser, pages[kind], width, scheme)
    assert asked == []
    assert browser.get_log("browser") == []
    assert _measure(browser, "document.documentElement.scrollWidth <= window.innerWidth")
    wide = (
        "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
        ".map(e => e.tagName + ' ' + e.className)"
    )
    assert _measure(browser, wide) == []
    assert browser.title != "taken"


@pytest.mark.parametrize("width", WIDTHS)
def test_every_chart_is_drawn_and_its_type_can_be_read(
    width: int, browser: webdriver.Chrome, pages: dict[str, Path]
) -> None:
    _open(browser, pages["two runs"], width, "light")
    charts = _measure(
        browser,
        "[...document.querySelectorAll('figure svg')].map(svg => ({name: svg.getAttribute('aria-label'),"
        " width: svg.getBoundingClientRect().width, height: svg.getBoundingClientRect().height,"
        " marks: svg.querySelectorAll('path, use').length,"
        " type: Math.min(...[...svg.querySelectorAll('text')].map(t => t.getBoundingClientRect().height)),"
        " out: [...svg.querySelectorAll('text')].filter(t => t.getBoundingClientRect().right >"
        " svg.getBoundingClientRect().right + 2).length}))",
    )
    assert len(charts) >= 18
    for chart in charts:
        assert chart["width"] > 250, chart
        assert chart["height"] > 90, chart
        assert chart["marks"] > 5, chart
        assert chart["type"] >= 9, chart
        assert chart["out"] == 0, chart


def test_light_and_dark_have_inks_that_can_be_read(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    for scheme in SCHEMES:
        _open(browser, pages["two runs"], 1440, scheme)
        colours = _measure(
            browser,
            "['main p', 'td', 'figcaption', 'figure svg text', 'small', '.tag', '.verdict h2'].map(s => {"
            " const e = document.querySelector(s); const style = getComputedStyle(e);"
            " let back = e; while (getComputedStyle(back).backgroundColor === 'rgba(0, 0, 0, 0)' && back.parentElement)"
            " back = back.parentElement;"
            " return [s, s.includes('svg') ? style.fill : style.color, getComputedStyle(back).backgroundColor]})",
        )
        for place, ink, paper in colours:
            assert _contrast(ink, paper) >= 4.5, (scheme, place, ink, paper)


def test_a_table_behind_a_chart_opens_without_breaking_the_page(
    browser: webdriver.Chrome, pages: dict[str, Path]
) -> None:
    _open(browser, pages["hostile"], 390, "light")
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert _measure(browser, "document.documentElement.scrollWidth <= window.innerWidth")


def _contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio of two ``rgb(r, g, b)`` colours."""
    lights = []
    for colour in (one, other):
        parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)
    return max(lights) / min(lights)
