"""The page in a browser: it shows what was recorded, and untrusted texts are never run as code."""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from PIL import Image

from helpers.agents import CPU, make_agent
from helpers.browser import browsing
from helpers.runs import refused
from rmc_agents.evaluate import watch
from rmc_agents.evaluate.episodes import PlaySettings
from rmc_agents.evaluate.replay import page
from rmc_agents.evaluate.replay.frames import SMALLER_SIDES, Frames, shrunk
from rmc_agents.evaluate.replay.recorder import record

pytestmark = pytest.mark.slow
HOSTILE = '</script><img src=x onerror="window.hacked=1"><script>window.hacked=1</script><!-- \' & \u2028'
STEPS = 40


class MissionEnv(gym.Env):
    """Frames of one colour, and a mission that contains code."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = Box(0, 255, (5, 5, 3), np.uint8)
    action_space = Discrete(5)
    mission = HOSTILE

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros((5, 5, 3), np.uint8), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        return np.full((5, 5, 3), self.time, np.uint8), 1.0, self.time == STEPS // 2, False, {}

    def render(self) -> np.ndarray:
        return np.full((21, 31, 3), (200, self.time, 40), np.uint8)


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Any]]:
    torch.manual_seed(0)
    agent = make_agent("rmc")
    with torch.no_grad():
        agent.policy.weight.mul_(500)
    settings = PlaySettings(5, CPU, max_steps=STEPS)
    return [
        record(agent, "minipacman", settings, name=HOSTILE, facts=HOSTILE, window=4),
        record(make_agent("gru"), MissionEnv, settings, name="frames", window=4),
    ]


@pytest.fixture(scope="module")
def address(runs: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "replay.html"
    page.write(path, runs)
    return path.as_uri()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(window: Any, address: str) -> Any:
    window.get("about:blank")
    window.get(address)
    return window


def press(browser: Any, key: str) -> None:
    browser.switch_to.active_element.send_keys(key)


def step_of(browser: Any) -> int:
    return int(browser.execute_script("return document.getElementById('scrub').value"))


def wait_for(browser: Any, condition: Callable[[], bool]) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 60).until(lambda _: condition())


def go_to(browser: Any, step: int) -> None:
    browser.execute_script(
        "const s = document.getElementById('scrub'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))", step
    )


def test_texts_stay_texts_and_nothing_is_fetched(browser: Any) -> None:
    assert browser.find_element("css selector", "h2").text.split() == HOSTILE.split()
    assert browser.find_element("css selector", ".mission").text.strip("“”").split() == HOSTILE.split()
    found = browser.execute_script(
        "return [window.hacked ?? null, document.scripts.length, performance.getEntriesByType('resource')"
        ".filter((entry) => !entry.name.startsWith('data:')).length]"
    )
    assert found == [None, 2, 0]
    assert browser.get_log("browser") == []


def test_data_cannot_end_their_element() -> None:
    text = page.as_data({"mission": HOSTILE})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"mission": HOSTILE}


def test_other_scripts_do_not_run(browser: Any) -> None:
    """The page's content security policy, in case a text becomes markup."""
    browser.execute_script("document.body.insertAdjacentHTML('beforeend', arguments[0])", HOSTILE)
    browser.execute_script("const s = document.createElement('script'); s.text = 'hacked = 1'; document.body.append(s)")
    assert browser.execute_script("return window.hacked ?? null") is None
    assert "Content Security Policy" in browser.get_log("browser")[0]["message"]


def test_keys(browser: Any, runs: list[dict[str, Any]]) -> None:
    from selenium.webdriver.common.keys import Keys

    peaks, last = runs[0]["peaks"], runs[0]["length"]
    assert len(peaks) > 1
    for key, step in (
        (Keys.ARROW_RIGHT, 1),
        (Keys.END, last),
        (Keys.ARROW_LEFT, last - 1),
        (Keys.HOME, 0),
        ("n", next(peak for peak in peaks if peak > 0)),
        (Keys.END, last),
        ("p", peaks[-1]),
    ):
        press(browser, key)
        assert step_of(browser) == step


STAND_STILL_AT_STEP_3 = """
const [speed, scrub] = ["speed", "scrub"].map((id) => document.getElementById(id));
speed.append(new Option("", "1e-9"));
const wait = () => {
  if (Number(scrub.value) < 3) return requestAnimationFrame(wait);
  speed.selectedIndex = speed.length - 1;
  arguments[0]();
};
wait();
"""


def test_space_plays_and_pauses(browser: Any) -> None:
    """Playback is held at step 3 before the second press, which may come late."""
    press(browser, " ")
    browser.execute_async_script(STAND_STILL_AT_STEP_3)
    paused = step_of(browser)
    assert browser.find_element("id", "play").get_attribute("aria-label") == "Pause"
    press(browser, " ")
    assert browser.find_element("id", "play").get_attribute("aria-label") == "Play"
    wait_for(browser, lambda: browser.execute_script("return location.hash") == f"#t={paused}")
    assert step_of(browser) == paused


def test_numbers_are_those_recorded(browser: Any, runs: list[dict[str, Any]]) -> None:
    from selenium.webdriver.common.by import By

    for step in (0, 7, runs[0]["length"] - 1):
        go_to(browser, step)
        for run, element in zip(runs, browser.find_elements(By.CLASS_NAME, "episode"), strict=True):
            if step >= run["length"]:
                assert element.find_element(By.CLASS_NAME, "end").text == "episode over"
                continue
            expected = {
                "return": f"{sum(run['rewards'][:step]):.2f}",
                "action": run["actions"][step],
                "divergence": f"{run['compared'][0]['divergence'][step]:.2f}",
            }
            for name, text in expected.items():
                assert element.find_element(By.CSS_SELECTOR, f"[data-number={name}]").text == text
            for i, policy in enumerate([run, *run["compared"]]):
                shares = [cell.text for cell in element.find_elements(By.CSS_SELECTOR, f"[data-policy='{i}']")]
                exact = [100 * share for share in policy["shares"][step]]
                assert [int(share.rstrip("%")) for share in shares] == pytest.approx(exact, abs=0.51)


def test_peaks_are_marked_and_lead_to_their_steps(browser: Any, runs: list[dict[str, Any]]) -> None:
    marks = browser.find_elements("css selector", ".episode:first-child .peaks button")
    assert [int(mark.get_attribute("data-step")) for mark in marks] == runs[0]["peaks"]
    browser.execute_script("arguments[0].click()", marks[1])
    assert step_of(browser) == runs[0]["peaks"][1]
    assert marks[1].get_attribute("aria-current") == "true"


def recorded(strip: dict[str, Any], step: int, label: str) -> float:
    """A value of a strip between 0 and 1, from its bytes."""
    return b64decode(strip["data"])[step * len(strip["labels"]) + strip["labels"].index(label)] / 255


def test_a_strip_reads_its_numbers_by_pointer_and_by_keyboard(browser: Any, runs: list[dict[str, Any]]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    strip, tip = browser.find_element("css selector", ".plot[tabindex]"), browser.find_element("id", "tip")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", strip)
    ActionChains(browser).move_to_element(strip).perform()
    step, reading = tip.text.split("\n")
    assert abs(int(step.removeprefix("step ")) - runs[0]["length"] // 2) <= 1  # the middle lies between two steps
    label, value = reading.split(": ")
    assert float(value) == pytest.approx(
        recorded(runs[0]["strips"][0], int(step.removeprefix("step ")), label), abs=6e-3
    )
    go_to(browser, 9)
    browser.execute_script("arguments[0].focus()", strip)
    press(browser, Keys.ARROW_DOWN)
    label = runs[0]["strips"][0]["labels"][1]
    assert tip.text == f"step 9\n{label}: {recorded(runs[0]['strips'][0], 9, label):.2f}"


def test_a_link_leads_to_its_step(window: Any, address: str) -> None:
    window.get("about:blank")
    window.get(f"{address}#t=11")
    assert step_of(window) == 11


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone(browser: Any, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        script = "return [document.documentElement.scrollWidth, getComputedStyle(document.body).backgroundColor]"
        width, background = browser.execute_script(script)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert width <= 360
    assert (background == "rgb(15, 17, 26)") == (scheme == "dark")


def test_a_page_that_is_too_large_is_refused(runs: list[dict[str, Any]], tmp_path: Path) -> None:
    large = runs[0] | {"mission": "x" * page.MAX_PAGE}
    with pytest.raises(ValueError, match=r"expected a page of at most 3 MB, got 3.*--max-steps [1-9]\d*$"):
        page.write(tmp_path / "a.html", [large])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--episodes", "2", "--out", "a.html"], "--episodes: expected 1 for a page, got 2"),
        (["--window", "0", "--out", "a.html"], "--window: expected at least 1, got 0"),
        (["--window", "4", "--out", "a.gif"], "--window: has no effect without a page"),
        (["minipacman-lstm", "--out", "a.gif"], "expected one run for a video or a figure, got 2"),
        (["recall-rmc", "--out", "a.html"], "expected runs of one environment, got minipacman, recall"),
    ],
)
def test_the_command_refuses_in_one_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, watch, "minipacman-rmc", *flags)


def test_the_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.html"
    names = ["minipacman-gru", "minipacman-none"]
    assert watch.main([*names, "--max-steps", "4", "--window", "2", "--out", str(out)]) == 0
    assert "@@" not in out.read_text("utf-8")
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("minipacman-gru: return ")
    assert second.startswith("minipacman-none: return ")
    assert last.startswith(str(out))


def test_names_tell_agents_apart() -> None:
    best, last = Path("runs/a/best.safetensors"), Path("runs/a/checkpoints/update-000000009.safetensors")
    assert watch.names_of_saved([best, last]) == ["best", "a"]
    first = last.with_name("update-000000001.safetensors")
    assert watch.names_of_saved([first, last]) == ["update-000000001", "update-000000009"]
    assert watch.names_of_saved([best, Path("runs/b/best.zip")]) == ["a/best", "b/best"]
    assert watch.names_of_saved([last, "old" / last]) == [
        f"{Path.cwd().name}/{last.with_suffix('')}",
        f"old/{last.with_suffix('')}",
    ]
    assert watch.names_of_saved([last, last]) == ["a", "a"]


def test_frames_are_reduced_until_the_page_is_small_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no further; pictures drawn from cells are not changed."""
    noise = np.random.default_rng(0).integers(0, 255, (4, 200, 200, 3), dtype=np.uint8)
    reel = Frames()
    for frame in noise:
        reel.add(frame)
    run = {"scene": reel.packed(), "view": None}
    whole = len(page.build([run]).encode())
    monkeypatch.setattr(page, "MAX_PAGE", whole)
    assert page.fitted([run]).frame_side is None
    monkeypatch.setattr(page, "MAX_PAGE", whole // 4)
    small = page.fitted([run])
    assert len(small.content) <= whole // 4
    assert small.frame_side is not None
    larger = SMALLER_SIDES[SMALLER_SIDES.index(small.frame_side) - 1]
    assert larger > small.frame_side
    assert len(page.build([shrunk(run, larger)]).encode()) > whole // 4
    assert f"frames reduced to {small.frame_side} pixels" in str(small)
    picture = Image.open(BytesIO(b64decode(shrunk(run, small.frame_side)["scene"]["frames"][0])))
    assert (picture.format, max(picture.size)) == ("WEBP", small.frame_side)


def test_a_browser_shows_reduced_frames(window: Any, runs: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "small.html"
    path.write_text(page.build([shrunk(runs[1], 20)]))
    window.get(path.as_uri())
    width = "return document.querySelector('.episode img').naturalWidth"
    wait_for(window, lambda: window.execute_script(width) == 20)
