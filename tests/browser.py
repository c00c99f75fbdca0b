"""A headless Chromium, spoken to through its DevTools pipe: no driver, no package, nothing but the browser itself."""

import base64
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from queue import Empty, Queue

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 60


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one page. A context manager.

    Attributes:
        complaints: What the page wrote to the console as a warning or error, and exceptions nobody caught.
        requests: Every address the page asked for.
    """

    def __init__(self):
        path = find_browser()
        assert path is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        # The browser reads from 3 and writes to 4. Another interpreter puts them there, from numbers out of the way:
        # code between fork and exec in this one, which has threads, could hang.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]
        place = f"import os, sys; os.dup2({ends[0]}, 3); os.dup2({ends[1]}, 4); os.execv(sys.argv[1], sys.argv[1:])"
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        arguments += [
            "--remote-debugging-pipe",
            f"--user-data-dir={self._profile.name}",
            "--no-first-run",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", place, path, *arguments],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self._numbers = itertools.count(1)
        self._answers: Queue = Queue()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._events: Queue = Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._session = None
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise

    def _attach(self) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _listen(self) -> None:
        rest = b""
        while part := os.read(self._in, 1 << 16):
            *whole, rest = (rest + part).split(b"\0")
            for message in map(json.loads, whole):
                if "id" in message:
                    self._answers.put(message)
                else:
                    self._note(message["method"], message["params"])

    def _note(self, method: str, params: dict) -> None:
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([a.get("value", a.get("description")) for a in params["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"].get("exception", {}).get("description", str(params)))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        self._events.put(method)

    def call(self, method: str, **params):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            try:
                answer = self._answers.get(timeout=SECONDS)
            except Empty:
                raise TimeoutError(f"the browser did not answer {method}") from None
            if answer["id"] == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def evaluate(self, expression: str):
        """The value of some JavaScript; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screen(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: os.PathLike) -> float:
        """Loads a file: the seconds until its scripts have run and it answers."""
        self.complaints.clear()
        self.requests.clear()
        while not self._events.empty():
            self._events.get()
        start = time.perf_counter()
        self.call("Page.navigate", url=f"file://{os.path.abspath(path)}")
        while self._events.get(timeout=SECONDS) != "Page.loadEventFired":
            pass
        # Two frames: what scripts have drawn is on the screen, and nothing is left to do.
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return time.perf_counter() - start

    def key(self, name: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            code = {"ArrowRight": 39, "ArrowLeft": 37, "Tab": 9}[name]
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def picture(self, *, whole: bool = False) -> bytes:
        """What is on the screen (or the whole page), as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)  # at the end of the pipe the browser leaves
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()
