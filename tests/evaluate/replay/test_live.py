"""The page of a training run: served only to this machine, and replaced when there is a newer checkpoint."""

import http.client
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers import forked
from helpers.agents import CPU, make_agent
from helpers.browser import browsing
from helpers.runs import refused, save_agent
from rmc_agents.evaluate import watch
from rmc_agents.evaluate.episodes import PlaySettings
from rmc_agents.evaluate.replay import live, page
from rmc_agents.evaluate.replay.recorder import record
from rmc_agents.evaluate.replay.server import PageServer
from rmc_agents.runs.checkpoint import CheckpointError

STEPS = 30


def get(address: str, path: str = "/", host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def wait_for(condition: Callable[[], bool], process: forked.Program | None = None) -> None:
    while not condition():
        assert process is None or process.poll() is None
        time.sleep(0.05)


def test_what_is_served() -> None:
    with PageServer(0, b"waiting") as server:
        assert server.address.startswith("http://127.0.0.1:")
        assert get(server.address) == (200, "waiting")
        server.show("update-7", "<p>é</p>".encode())
        assert get(server.address) == (200, "<p>é</p>")
        assert get(server.address, "/version") == (200, "update-7")
        assert get(server.address, "/../../etc/passwd")[0] == get(server.address, "/page.css")[0] == 404
        port = server.address.rpartition(":")[2]
        assert get(server.address, host=f"localhost:{port}")[0] == 200
        assert get(server.address, host="localhost")[0] == 200  # as browsers write port 80
        assert get(server.address, host=f"stranger.example:{port}")[0] == 403
        assert get(server.address, host="stranger.example")[0] == 403
    with pytest.raises(ConnectionRefusedError):
        get(server.address)


def test_a_browser_that_leaves_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    handled, handle_error = threading.Event(), PageServer.handle_error

    def handle(*arguments: Any) -> None:
        handle_error(*arguments)
        handled.set()

    monkeypatch.setattr(PageServer, "handle_error", handle)
    with PageServer(0, b"waiting") as server:
        with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
            connection.sendall(b"GET /")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets it
        assert handled.wait(60)
    assert capsys.readouterr().err == ""


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_agent(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for flags, message in (
            ([str(tmp_path / "run"), "--port", port], f"--port {port}: in use; choose another"),
            ([str(tmp_path / "run"), "--port", "65536"], "--port: expected 1 to 65535, or 0 for any free port"),
            ([str(tmp_path / "run"), "--port", "-1"], "--port: expected 1 to 65535"),
            ([str(tmp_path / "run"), "--port", "0", "--out", "a.html"], "expected one of them, got both"),
            ([str(tmp_path / "run"), "--port", "0", "--episodes", "2"], "--episodes: expected 1 for a page"),
            ([str(tmp_path), "--port", "0"], f"{tmp_path} holds no checkpoint"),
            ([str(tmp_path / "none"), "--port", "0"], f"there is no checkpoint {tmp_path / 'none'}"),
        ):
            assert message in refused(capsys, watch, *flags)


def test_the_newest_checkpoints_are_shown_and_one_that_has_gone_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, file = tmp_path / "run", save_agent(tmp_path / "other")
    run.mkdir()
    (run / ".lock").touch()
    assert live.find_source(run, None, False) == run
    output: list[str] = []
    made: list[str] = []
    results = iter(
        [CheckpointError("gone"), OSError("too many open files"), page.Page(b"page", None), KeyboardInterrupt()]
    )
    saved = iter([None, *(f"update-00000000{i}" if i else None for i in (3, 0, 4, 5, 6))])

    def make_page(version: str) -> tuple[page.Page, list[str]]:
        made.append(version.partition("@")[0])
        result = next(results)
        if isinstance(result, BaseException):
            raise result
        return result, ["shown"]

    def sleep(seconds: float) -> None:
        if name := next(saved):
            save_agent(run).rename(run / "checkpoints" / f"{name}.safetensors")

    monkeypatch.setattr(live, "time", SimpleNamespace(sleep=sleep))
    live.serve([run, file], 0, make_page, output.append)
    assert made == [f"update-00000000{i}.safetensors" for i in (3, 4, 5, 6)]
    assert output[1:] == [
        f"waiting for the first checkpoint of {run}",
        "skipped: gone",
        "skipped: too many open files",
        "shown",
        "ended",
    ]


@pytest.mark.slow
def test_a_run_is_watched_from_its_beginning_until_interrupted(tmp_path: Path) -> None:
    run = tmp_path / "<b>run"
    run.mkdir()
    (run / ".lock").touch()
    program, log = "from rmc_agents.evaluate.watch import main; sys.exit(main())", tmp_path / "log"
    log.touch()
    process = forked.Program(program, [str(run), "--port", "0", "--max-steps", "5", "--window", "2"], log)
    wait_for(lambda: "\n" in log.read_text(), process)
    address = log.read_text().split()[0]
    assert "Waiting for the first checkpoint of" in get(address)[1]
    assert "<b>" not in get(address)[1]
    save_agent(run)
    wait_for(lambda: "1,200 frames" in get(address)[1], process)
    first = get(address, "/version")[1]
    assert f'"version":"{first}"' in get(address)[1]
    os.utime(next((run / "checkpoints").iterdir()), (1, 1))
    wait_for(lambda: get(address, "/version")[1] not in ("", first), process)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0
    assert log.read_text().rstrip().endswith("ended")


@pytest.mark.slow
def test_a_browser_goes_to_the_newer_page_and_keeps_the_step(tmp_path: Path) -> None:
    settings = PlaySettings(5, CPU, max_steps=STEPS)
    runs = [record(make_agent("lstm"), "minipacman", settings, name=name, window=2) for name in ("older", "newer")]
    first, second = (page.fitted([run], version).content for run, version in zip(runs, "12", strict=True))
    with browsing(tmp_path / "profile") as browser, PageServer(0, b"waiting") as server:
        server.show("1", first)
        browser.get(f"{server.address}/#t=7")

        def shown() -> tuple[str, str]:
            return browser.title, browser.execute_script("return document.getElementById('scrub').value")

        assert shown() == ("older · replay", "7")
        server.show("2", second)
        wait_for(lambda: shown() == ("newer · replay", "7"))
        assert browser.find_element("id", "live").text == "live"
        assert browser.get_log("browser") == []
