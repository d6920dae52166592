"""One Chromium without a window, and its end: the browser never outlives the process that started it.

Knows processes, ChromeDriver and Selenium. Knows nothing of pages, tasks or episodes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from typing import Any

from palaestra.errors import MissingExtra, missing_extra

WIDTH, HEIGHT = 500, 560  # of the window; pages of 160 × 210 stand at its top left
START_SECONDS, ANSWER_SECONDS = 60.0, 30.0
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
CHROMEDRIVER = ("chromedriver",)
READY = "was started successfully on port "

# A shell waits beside the browser for the end of its own input, which comes when this process closes the pipe or dies,
# however it dies; then it ends the whole group and removes the browser's folder.
GUARD = """profile=$1; shift; "$@" </dev/null & read -r end; trap "" TERM; kill -TERM 0; sleep 0.2
rm -rf "$profile"; kill -KILL 0"""

FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-breakpad",
    "--disable-dev-shm-usage",
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--disable-features=Translate,OptimizationHints,MediaRouter",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # pages are files: whatever asks for the network gets none
    "--force-device-scale-factor=1",
    f"--window-size={WIDTH},{HEIGHT}",
)


class BrowserLost(Exception):
    """The browser or its driver died, hung or lost its page."""


def binary(names: tuple[str, ...], package: str) -> str:
    """The path of the first of these programs.

    Raises: MissingExtra.
    """
    for name in names:
        if found := shutil.which(name):
            return found
    raise MissingExtra(
        where="environment miniwob",
        what=f"the program `{names[0]}` was not found on the PATH.",
        remedy=f"Install it with: apt-get install {package}",
    )


def selenium() -> Any:
    """Selenium's `webdriver`.

    Raises: MissingExtra.
    """
    try:
        from selenium import webdriver
    except ImportError as error:
        raise missing_extra("selenium", extra="web", needed_for="environment miniwob") from error
    return webdriver


class Browser:
    """A running Chromium with one page; calls come from one thread at a time."""

    def __init__(self) -> None:
        webdriver = selenium()
        chromium, driver = binary(CHROMIUM, "chromium"), binary(CHROMEDRIVER, "chromium-driver")
        self.address: str | None = None  # of the page that is open
        self._profile = tempfile.mkdtemp(prefix="palaestra-browser-")
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "sh", self._profile, driver, "--port=0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        try:
            self._driver = self._connect(webdriver, chromium)
        except BaseException:
            self.close()
            raise

    @property
    def group(self) -> int:
        """The process group of the browser, its driver and its guard."""
        return self._guard.pid

    def _connect(self, webdriver: Any, chromium: str) -> Any:
        from selenium.webdriver.common.proxy import Proxy, ProxyType
        from selenium.webdriver.remote.client_config import ClientConfig

        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        options.unhandled_prompt_behavior = "dismiss"
        for flag in (*FLAGS, f"--user-data-dir={self._profile}"):
            options.add_argument(flag)
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")  # Chromium refuses to run as root with its sandbox
        server = f"http://127.0.0.1:{self._port()}"
        direct = Proxy(
            {"proxyType": ProxyType.DIRECT}
        )  # the driver is on this machine, whatever the proxy settings say
        config = ClientConfig(remote_server_addr=server, timeout=int(ANSWER_SECONDS), proxy=direct)
        try:
            return webdriver.Remote(server, options=options, client_config=config)
        except Exception as error:
            raise BrowserLost(f"Chromium did not start: {_first_line(error)}") from error

    def _port(self) -> int:
        """Where the driver listens: it says so once it is ready."""
        assert self._guard.stdout is not None
        patience = threading.Timer(START_SECONDS, self._end)  # a driver that says nothing is ended, and reading with it
        patience.start()
        try:
            for line in self._guard.stdout:
                if READY in line:
                    return int(line.partition(READY)[2].strip().rstrip("."))
        finally:
            patience.cancel()
        raise BrowserLost("ChromeDriver did not start")

    # ---- commands -----------------------------------------------------------------------------------------
    def open(self, address: str) -> None:
        """Load a page anew."""
        self.address = None
        self._ask(self._driver.get, address)
        self.address = address

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page that calls its last argument with the result, and get that."""
        return self._ask(self._driver.execute_async_script, script, *arguments)

    def perform(self, sources: list[dict[str, Any]]) -> None:
        """Make moves, clicks and key strokes as a person's mouse and keyboard do (W3C actions)."""
        self._ask(self._driver.execute, "actions", {"actions": sources})

    def picture(self) -> bytes:
        """The window as PNG."""
        return self._ask(self._driver.get_screenshot_as_png)  # type: ignore[no-any-return]

    def _ask(self, command: Any, *arguments: Any) -> Any:
        try:
            return command(*arguments)
        except Exception as error:  # Selenium's own errors, and those of the connection below it
            raise BrowserLost(_first_line(error)) from error

    # ---- the end ------------------------------------------------------------------------------------------
    def _end(self) -> None:
        assert self._guard.stdin is not None
        try:
            self._guard.stdin.close()
        except OSError:
            pass  # the guard itself is gone

    def close(self) -> None:
        """End the browser and all its processes; the guard removes the folder."""
        self._end()
        self._guard.wait()
        if self._guard.stdout is not None:
            self._guard.stdout.close()
        shutil.rmtree(self._profile, ignore_errors=True)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].removeprefix('Message: ') if lines else 'no reason given'}"
