"""A headless Chromium, driven through ChromeDriver and Selenium. It never outlives the process that started it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from typing import Any

from palaestra.errors import MissingExtra, missing_extra

WIDTH, HEIGHT = 500, 560  # of the window; a page fills 160 × 210 pixels at its top left
START_SECONDS, ANSWER_SECONDS = 60.0, 30.0
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
CHROMEDRIVER = ("chromedriver",)
READY = "was started successfully on port "

# A shell runs beside the browser and waits for the end of its input. The input ends when this process closes the pipe
# or dies, for whatever reason. The shell then ends the whole process group and removes the browser's folder. It closes
# its own output first, so the output ends with the driver.
GUARD = """profile=$1; shift; "$@" </dev/null & exec >&-; read -r end; trap "" TERM; kill -TERM 0; sleep 0.2
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
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no network: pages are files
    "--force-device-scale-factor=1",
    f"--window-size={WIDTH},{HEIGHT}",
)


class BrowserLost(Exception):
    """The browser or its driver has died, hung or lost its page."""


def binary(names: tuple[str, ...], package: str) -> str:
    """The path of the first of these programs that is on the PATH.

    Args:
        package: the Debian package that the error names.

    Raises: MissingExtra, if none is.
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
    """A running Chromium with one page. One thread at a time may call it."""

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
        direct = Proxy({"proxyType": ProxyType.DIRECT})  # the driver is on this machine, so no proxy is used
        config = ClientConfig(remote_server_addr=server, timeout=int(ANSWER_SECONDS), proxy=direct)
        try:
            return webdriver.Remote(server, options=options, client_config=config)
        except Exception as error:
            raise BrowserLost(f"Chromium did not start: {_first_line(error)}") from error

    def _port(self) -> int:
        """The port that the driver prints when it is ready."""
        assert self._guard.stdout is not None
        patience = threading.Timer(START_SECONDS, self._end)  # ends a silent driver, which also ends the reading below
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
        """Load a page, also if it is the one that is open."""
        self.address = None
        self._ask(self._driver.get, address)
        self.address = address

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page. The script calls its last argument with the value that this returns."""
        return self._ask(self._driver.execute_async_script, script, *arguments)

    def perform(self, sources: list[dict[str, Any]]) -> None:
        """Make moves, clicks and key strokes of a mouse and a keyboard (W3C actions)."""
        self._ask(self._driver.execute, "actions", {"actions": sources})

    def picture(self) -> bytes:
        """A screenshot of the window, as PNG."""
        return self._ask(self._driver.get_screenshot_as_png)  # type: ignore[no-any-return]

    def _ask(self, command: Any, *arguments: Any) -> Any:
        try:
            return command(*arguments)
        except Exception as error:  # errors of Selenium and of its connection
            raise BrowserLost(_first_line(error)) from error

    # ---- the end ------------------------------------------------------------------------------------------
    def _end(self) -> None:
        assert self._guard.stdin is not None
        try:
            self._guard.stdin.close()
        except OSError:
            pass  # the guard has already ended

    def close(self) -> None:
        """End the browser, all its processes and its folder."""
        self._end()
        self._guard.wait()
        if self._guard.stdout is not None:
            self._guard.stdout.close()
        shutil.rmtree(self._profile, ignore_errors=True)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].removeprefix('Message: ') if lines else 'no reason given'}"
