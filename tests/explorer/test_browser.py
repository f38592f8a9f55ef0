"""The explorer as a person meets it, in headless Chromium: look, drag, click, upload, follow a link."""

import time
import urllib.error
import urllib.request

import pytest
from small_models import waves

from cstformer import Samples


@pytest.fixture
def visit(browser, explorer):
    """Open a page at an address of the explorer; at the end nothing may have gone wrong in it."""
    opened, wrong = [], []

    def open_page(query="", width=1280, height=900):
        page = browser.new_page(viewport={"width": width, "height": height})
        page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda r: wrong.append(r.url) if not r.url.startswith(own(explorer)) else None)
        page.set_default_timeout(20_000)
        page.goto(explorer["url"] + query)
        page.locator("canvas:visible").last.wait_for()
        opened.append(page)
        return page

    yield open_page
    for page in opened:
        page.close()
    assert not wrong


def own(explorer):
    return (explorer["url"], explorer["url"].replace("http", "ws"), "data:", "blob:")


def readout(page):
    return page.locator(".readout table")


def test_a_curve_is_explored(visit, tmp_path):
    page = visit("?sample=1&t=3.5")
    readout(page).get_by_text("3.5000").wait_for()

    # The time slider by keyboard, as by mouse. The benchmark measures; here a busy machine may take its time.
    page.get_by_role("slider").first.focus()
    assert min(step(page) for _ in range(4)) < 1.0
    page.wait_for_function("() => !/t=3.5(&|$)/.test(location.search)")

    # Noise, by keyboard too, moves the fit; the address follows.
    page.get_by_role("slider").nth(1).focus()
    page.keyboard.press("End")
    page.wait_for_function("() => location.search.includes('noise=1')")
    page.get_by_role("button", name="As observed").click()
    page.wait_for_function("() => !location.search.includes('noise')")

    # A file that is no data is refused in words, and the page goes on.
    bad = tmp_path / "bad.csv"
    bad.write_text("t,y0,y1\n0,one,2\n")
    page.locator("input[type=file]").set_input_files(bad)
    alert = page.locator(".message [role=alert]")
    alert.get_by_text("column 'y0' holds text, such as 'one'").wait_for()
    assert "Traceback" not in page.content() and str(tmp_path) not in alert.inner_text()

    # One's own data are shown.
    good = tmp_path / "good.csv"
    waves(2, seed=7).save(good)
    page.locator("input[type=file]").set_input_files(good)
    page.wait_for_function("() => !location.search")  # what nobody else has cannot be linked to
    assert not alert.is_visible()

    # And taken away again.
    with page.expect_download() as download:
        page.get_by_text("Download CSV").click()
    download.value.save_as(tmp_path / "taken.csv")
    taken = Samples.load(tmp_path / "taken.csv")
    assert taken.value_names[:2] == ("y0", "y1") and taken.n == 401


def step(page):
    """Seconds from the key to the new numbers."""
    before = readout(page).inner_text()
    started = time.perf_counter()
    page.keyboard.press("ArrowRight")
    while readout(page).inner_text() == before:
        assert time.perf_counter() - started < 10
    return time.perf_counter() - started


def test_a_point_is_clicked_away(visit):
    page = visit("?sample=1")
    fit = readout(page).inner_text()
    # The leftmost black dot of the first plot, found by its colour.
    plot = page.locator(".plots canvas:visible").first
    box = plot.bounding_box()
    where = page.evaluate(
        """() => {
            const all = (root) => [...root.querySelectorAll('*')].flatMap(
                (e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])])
            const canvas = all(document).find((e) => e.tagName === 'CANVAS' && e.offsetWidth > 300)
            const {width, height} = canvas
            const data = canvas.getContext('2d').getImageData(0, 0, width, height).data
            for (let x = 70; x < width; x++) for (let y = 60; y < height - 60; y++) {
                let black = 0
                for (let k = 0; k < 4; k++) black += data[4 * ((y + k) * width + x)] < 10 ? 1 : 0
                const wide = data[4 * (y * width + x + 3)] < 10
                if (black === 4 && wide) return [(x + 3) / width, (y + 2) / height]
            }
        }"""
    )
    assert where
    page.mouse.click(box["x"] + where[0] * box["width"], box["y"] + where[1] * box["height"])
    page.wait_for_function("() => location.search.includes('without=')")
    page.wait_for_timeout(200)
    assert readout(page).inner_text() != fit


def test_a_film_is_scrubbed_and_a_patch_is_asked(visit):
    page = visit("?model=film&t=0.5&row=2&col=2")
    slider = page.get_by_role("slider").first
    slider.focus()
    page.keyboard.press("PageUp")
    page.wait_for_function("() => !/t=0.5(&|$)/.test(location.search)")
    page.get_by_role("button", name="2×").click()
    page.wait_for_function("() => location.search.includes('zoom=2')")
    box = page.locator(".pictures canvas:visible").first.bounding_box()
    page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 0.4 * box["height"])
    page.wait_for_function("() => !location.search.includes('row=2&col=2')")


@pytest.mark.parametrize("query", ["", "?model=film"])
def test_it_fits_a_telephone(visit, query):
    page = visit(query, width=390, height=800)
    page.wait_for_timeout(300)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    # The slider stays in sight while the plots scroll by.
    page.mouse.move(200, 400)
    page.mouse.wheel(0, 700)
    page.wait_for_timeout(300)
    assert page.get_by_role("slider").first.bounding_box()["y"] >= 0


# --- Who may look ---


def fetch(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_without_the_token_there_is_a_form_and_nothing_else(explorer, browser):
    url = explorer["locked_url"].split("?")[0]
    status, text = fetch(url)
    assert status == 403 and 'name="token"' in text and "session" not in text
    assert fetch(f"{url}?token=wrong")[0] == 403
    page = browser.new_page()
    page.goto(url)
    page.get_by_label("Token").fill("a token for the tests")
    page.keyboard.press("Enter")
    page.locator("canvas:visible").last.wait_for(timeout=20_000)
    page.wait_for_function("() => location.search && !location.search.includes('token')")  # links do not carry it
    page.reload()
    page.locator("canvas:visible").last.wait_for(timeout=20_000)
    page.close()


@pytest.mark.parametrize(("origin", "expected"), [("http://evil.example", 403), (None, 101)])
def test_pages_of_others_may_not_talk_to_it(explorer, origin, expected):
    import http.client
    import re

    host = explorer["url"].removeprefix("http://").strip("/")
    token = re.search(r'"token":"([^"]+)"', fetch(explorer["url"])[1]).group(1)
    connection = http.client.HTTPConnection(host, timeout=10)
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    upgrade |= {"Sec-WebSocket-Key": "x3JJHMbDL1EzLkh9GBhXDw==", "Sec-WebSocket-Protocol": f"bokeh, {token}"}
    connection.request("GET", "/ws", headers=upgrade | {"Origin": origin or f"http://{host}"})
    assert connection.getresponse().status == expected
    connection.close()


@pytest.mark.parametrize("path", ["../../etc/passwd", "static/../../../etc/passwd", "static/%2e%2e/%2e%2e/etc/passwd"])
def test_no_file_of_the_disk_is_served(explorer, path):
    status, text = fetch(explorer["url"] + path)
    assert status in (403, 404) and "root:" not in text and "Traceback" not in text
