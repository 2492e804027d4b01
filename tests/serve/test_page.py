"""The page at `/`, in a headless Chromium: models, forms, answers and errors; with the keyboard alone, light and dark."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from browser import Browser, program
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import hbc

pytest.importorskip("uvicorn")
pytest.importorskip("orjson")

if program() is None:
    pytest.skip("no Chromium", allow_module_level=True)

rng = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": rng.integers(20, 60, 80).astype(float),
        "town <b>": rng.choice(["Köln", "Ulm", "Bonn"], 80),
        "class": rng.choice([1, 2, 3], 80),
    }
)
MODEL = make_pipeline(
    make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(handle_unknown="ignore"), ["town <b>", "class"])),
    LogisticRegression(),
).fit(FRAME, np.where(FRAME["age"] + 10 * FRAME["class"] > 60, "yes", "no"))
MATRIX = LogisticRegression().fit(np.eye(3), [0, 1, 1])
TOKEN = "a-token"


class Server:
    """`hbc serve` in a process of its own."""

    def __init__(self, *words: str, token: str | None = None) -> None:
        command = [sys.executable, "-m", "hbc", "serve", *words, "--port", "0"]
        environment = {**os.environ, **({} if token is None else {"HBC_TOKEN": token})}
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self._process.stderr is not None
        self.url = ""
        for line in self._process.stderr:
            found = json.loads(line)
            if found["event"] == "ready":
                self.url = found["url"]
                break
        self.port = int(self.url.rpartition(":")[2])

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=30)
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    hbc.convert(MODEL, "numpy", FRAME).save(folder / "towns.hbc")
    hbc.convert(MATRIX, "numpy").save(folder / "matrix.hbc")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    running = Server(str(folder / "towns.hbc"), str(folder / "matrix.hbc"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def one() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.fixture
def browser(one: Browser, server: Server) -> Browser:
    """The page, with the model `towns` in its form."""
    one.messages.clear()
    one.open(server.url)
    one.until("document.querySelectorAll('#models tbody tr').length == 2 && !document.querySelector('#send').disabled")
    choose(one, "model", "towns 1")
    return one


def choose(browser: Browser, place: str, value: str) -> None:
    """Choose an option, as a user does."""
    browser.run(f"(e => {{ e.value = {value!r}; e.dispatchEvent(new Event('change')) }})(document.getElementById({place!r}))")


def fill(browser: Browser, place: int, text: str) -> None:
    browser.run(f"document.getElementById('column-{place}').value = {text!r}")


def text(browser: Browser, place: str) -> str:
    return str(browser.run(f"document.querySelector({place!r}).innerText"))


def send(browser: Browser) -> str:
    """What stands below the form after the button was pressed."""
    browser.run("document.getElementById('answer').replaceChildren(), document.getElementById('send').click()")
    browser.until("document.getElementById('answer').children.length")
    return text(browser, "#answer")


def test_models_and_their_schema(browser: Browser) -> None:
    assert re.search(r"ready, 2 models, one process", text(browser, "#server"))
    rows = browser.run("[...document.querySelectorAll('#schema tbody tr')].map(r => [...r.cells].map(c => c.innerText))")
    assert [row[:2] for row in rows] == [["age", "number"], ["town <b>", "text"], ["class", "number"]]
    assert rows[1][2].startswith("“Bonn”, “Köln”, “Ulm”")
    assert rows[2][2].startswith("1, 2, 3")
    assert "predict_proba" in text(browser, "#results")
    assert browser.messages == []


def test_a_record_is_sent_and_answered(browser: Browser) -> None:
    record = {"age": 41.0, "town <b>": "Ulm", "class": 3}
    for place, value in ((0, "41"), (1, "2"), (2, "2")):
        fill(browser, place, value)
    expected = MODEL.predict(pd.DataFrame([record]))[0]
    assert f"predict: {expected}" in send(browser)
    choose(browser, "method", "predict_proba")
    send(browser)
    shares = browser.run("[...document.querySelectorAll('#answer .bars > *')].map(e => e.innerText)")
    assert [shares[0], shares[3]] == ["no", "yes"]
    np.testing.assert_allclose([float(shares[2]), float(shares[5])], MODEL.predict_proba(pd.DataFrame([record]))[0], rtol=1e-4)
    raw = browser.run("document.querySelector('#raw pre').textContent")
    assert json.loads(raw.splitlines()[1]) == {"record": record}
    assert browser.messages == []


def test_missing_and_other_values(browser: Browser) -> None:
    fill(browser, 0, "41")
    browser.run("document.getElementById('column-1').value = 'other'")
    browser.run("document.getElementById('column-1').dispatchEvent(new Event('change'))")
    assert browser.run("document.activeElement.getAttribute('aria-label')") == "another value of town <b>"
    browser.write("Genf")
    found = send(browser)
    frame = pd.DataFrame([{"age": 41.0, "town <b>": "Genf", "class": 1}])
    assert f"predict: {MODEL.predict(frame)[0]}" in found
    fill(browser, 0, "")
    assert browser.run("document.querySelector('#answer .error')") is None
    assert "NaN" in send(browser)  # scikit-learn's regression takes no missing values, and the answer says so
    assert browser.run("Boolean(document.querySelector('#answer .error'))")


def test_what_is_no_number_is_not_sent(browser: Browser) -> None:
    fill(browser, 0, "old")
    assert "age: found “old”, expected a number" in send(browser)
    assert browser.run("document.activeElement.id") == "column-0"
    assert browser.run("document.activeElement.getAttribute('aria-invalid')") == "true"
    fill(browser, 0, "41")
    assert "predict:" in send(browser)


def test_a_model_without_names_takes_a_row(browser: Browser) -> None:
    choose(browser, "model", "matrix 1")
    for place, value in enumerate(("0.5", "2", "-1")):
        fill(browser, place, value)
    assert f"predict: {MATRIX.predict([[0.5, 2, -1]])[0]}" in send(browser)
    assert browser.messages == []


def test_the_keyboard_is_enough(browser: Browser) -> None:
    """From the top of the page by Tab alone: the link to the form, the two lists, the fields, the button."""
    browser.run("document.activeElement.blur()")
    seen = []
    for _ in range(12):
        browser.press("Tab")
        seen.append(
            browser.run("document.activeElement.id || document.activeElement.className || document.activeElement.tagName")
        )
        if seen[-1] == "column-0":
            browser.write("41")
        if seen[-1] == "column-2":
            browser.press("ArrowDown")
        if seen[-1] == "send":
            break
    assert seen == ["skip", "model", "method", "column-0", "column-1", "column-2", "send"]
    assert browser.run("document.activeElement.matches(':focus-visible')")
    browser.press("Enter")
    browser.until("document.querySelector('#answer .result')")
    frame = pd.DataFrame([{"age": 41.0, "town <b>": "Bonn", "class": 2}])
    assert f"predict: {MODEL.predict(frame)[0]}" in text(browser, "#answer")


def contrast(browser: Browser, place: str) -> float:
    """The contrast of an element's text to the card that it stands on, by WCAG's formula."""
    ink, paper = browser.run(
        f"(e => [getComputedStyle(e).color, getComputedStyle(e.closest('section')).backgroundColor])(document.querySelector({place!r}))"
    )

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(ink), light(paper)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_light_and_dark(browser: Browser) -> None:
    papers = []
    fill(browser, 0, "old")
    send(browser)
    for dark in (False, True):
        browser.dark(dark)
        papers.append(browser.run("getComputedStyle(document.body).backgroundColor"))
        for place in ("#models td", "#hint", "label[for=model]"):
            assert contrast(browser, place) >= 4.5, (dark, place)
    assert papers[0] != papers[1]
    browser.dark(False)


def test_a_narrow_window_does_not_scroll_sideways(browser: Browser) -> None:
    browser.width(360)
    try:
        assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    finally:
        browser.width(1280)


def test_it_is_live(browser: Browser, server: Server) -> None:
    before = int(browser.run("document.querySelector('#models tbody').rows[1].cells[3].innerText"))
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    for _ in range(20):
        connection.request(
            "POST", "/v1/models/towns:predict", json.dumps({"record": {"age": 1, "town <b>": "Ulm", "class": 1}})
        )
        connection.getresponse().read()
    connection.close()
    browser.until(f"Number(document.querySelector('#models tbody').rows[1].cells[3].innerText) == {before + 20}")
    browser.until("/^[0-9]+ answered/.test(document.querySelector('#latency-note').innerText)")
    assert browser.run("document.querySelectorAll('#latency .bar').length") >= 1
    browser.until("Number(document.querySelector('#most').innerText) > 0")
    browser.open(f"{server.url}/?again")  # the server knows what was before the page was opened
    browser.until("document.querySelector('#rates .line').getAttribute('d')?.startsWith('M')")
    assert browser.run("Number(document.querySelector('#most').innerText)") > 0
    assert browser.run("document.querySelectorAll('#latency .bar').length") >= 1


def test_a_server_that_is_gone_is_said_so(folder: Path, one: Browser) -> None:
    running = Server(str(folder / "towns.hbc"))
    one.open(running.url)
    one.until("document.querySelector('#models tbody tr') && !document.querySelector('#send').disabled")
    running.stop()
    one.until("!document.querySelector('#trouble').hidden")
    assert "cannot be reached" in text(one, "#trouble")
    fill(one, 0, "3")
    assert send(one)
    one.open("about:blank?")


def test_the_token_is_asked_for(folder: Path, one: Browser) -> None:
    running = Server(str(folder / "towns.hbc"), token=TOKEN)
    try:
        one.open(running.url)
        one.until("!document.querySelector('#access').hidden")
        assert "token" in text(one, "#trouble")
        one.run("document.querySelector('#token').focus()")
        one.write(TOKEN)
        one.press("Enter")
        one.until("document.querySelector('#models tbody tr')")
        one.until("document.querySelector('#trouble').hidden")
        assert not one.run("Boolean(document.querySelector('#access:not([hidden])'))")
        fill(one, 0, "41")
        assert "predict:" in send(one)
        assert TOKEN not in one.run("JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])")
    finally:
        one.open("about:blank?")
        running.stop()


def test_nothing_comes_from_another_host(browser: Browser, server: Server) -> None:
    """No address of another host stands in the files, and the browser is told to load none."""
    page = Path(hbc.__file__).parent / "serve" / "page"
    for file in page.glob("*.*"):
        if file.suffix != ".py":
            assert "://" not in file.read_text(), file
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    for path in ("/", "/page.css", "/page.js"):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    connection.close()
    loaded: Any = browser.run("performance.getEntriesByType('resource').map(e => new URL(e.name).origin)")
    assert set(loaded) == {server.url}
    browser.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.bad = 1'; document.body.append(s) })()"
    )
    time.sleep(0.05)
    assert browser.run("window.bad") is None
    assert any("Content Security Policy" in message for message in browser.messages)
