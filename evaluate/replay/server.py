"""A local web server for a page that is replaced while it is viewed."""

import errno
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self

ADDRESS = "127.0.0.1"  # loopback: other machines cannot reach it
HIGHEST_PORT = 65_535


class PageServer(ThreadingHTTPServer):
    """Serves a page at `/` and its version at `/version`, from a background thread while entered.

    Args:
      port: 0: any free port.
      page: the first page.

    Attributes:
      address: the URL for a browser.

    Raises:
      ValueError: for a port that is in use or may not be used.
    """

    def __init__(self, port: int, page: bytes) -> None:
        check_port(port)
        self.served = ("", page)  # version and page
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            reason = "in use; choose another" if error.errno == errno.EADDRINUSE else error.strerror
            raise ValueError(f"--port {port}: {reason}") from error
        self._thread = Thread(target=self.serve_forever, args=(0.1,), daemon=True)
        self.address = f"http://{ADDRESS}:{self.server_port}"

    def show(self, version: str, page: bytes) -> None:
        """Serve this page from now on."""
        self.served = (version, page)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """As in the base class, but silent if the browser has left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


def check_port(port: int) -> None:
    """Raises ValueError unless it is a valid port."""
    if not 0 <= port <= HIGHEST_PORT:
        raise ValueError(f"--port: expected 1 to {HIGHEST_PORT}, or 0 for any free port, got {port}")


class _Handler(BaseHTTPRequestHandler):
    """Answers with the current page; requests never name files."""

    server: PageServer
    timeout = 10.0  # seconds: idle connections do not use up this process's files

    def do_GET(self) -> None:
        """The page, or its version."""
        version, page = self.server.served
        answers = {"/": ("text/html", page), "/version": ("text/plain", version.encode(errors="replace"))}
        host = self.headers.get("Host", "").partition(":")[0]  # browsers leave out port 80
        if host not in (ADDRESS, "localhost"):  # DNS rebinding: a foreign name that resolves to this machine
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path not in answers:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._answer(*answers[self.path])

    def _answer(self, kind: str, content: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """No request log: the terminal shows checkpoints."""
