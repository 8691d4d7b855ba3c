"""A server on this machine: files at addresses that may misbehave, and datasets in the layout of the Hub."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Page:
    """A file at an address.

    Attributes:
        body: its bytes.
        status: of the answer.
        location: where it has moved to.
        etag: its version; None: the server tells none.
        ranges: whether a part can be asked for.
        length: whether the answer says how long it is.
        cuts: after how many bytes of the body each answer ends, one answer after the other; then all is sent.
        user_agents: what a program must call itself.
        open: set when an answer may be sent.
    """

    body: bytes = b""
    status: int = 200
    location: str | None = None
    etag: str | None = '"1"'
    ranges: bool = True
    length: bool = True
    cuts: list[int] = field(default_factory=list)
    user_agents: str = ".*"
    open: threading.Event | None = None


class MirrorServer(ThreadingHTTPServer):
    """Pages by path, datasets by name (path in the repository -> bytes), and what was asked.

    `sums` maps a file of a dataset to the SHA-256 that the list gives instead of its own; an `overloaded` server does
    nothing else than to say so.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages: dict[str, Page] = {}
        self.datasets: dict[str, dict[str, bytes]] = {}
        self.revisions = {"main", COMMIT, "refs/convert/parquet"}
        self.sums: dict[str, str] = {}
        self.overloaded = False
        self.asked: list[str] = []
        self.ranges: list[str | None] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, path: str, body: bytes = b"", **page: object) -> str:
        """Put a page at a path; give its address."""
        self.pages[path] = Page(body, **page)  # type: ignore[arg-type]
        return self.address + path

    def stop(self) -> None:
        """Answer nobody any more."""
        self.shutdown()
        self.server_close()

    def fetched(self, path: str) -> int:
        """Count how often a path was asked for."""
        return sum(asked == f"GET {path}" for asked in self.asked)


class _Handler(BaseHTTPRequestHandler):
    server: MirrorServer

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        if self.server.overloaded:
            self._send(503, b"")
        elif path.startswith("/api/datasets/"):
            self._list(path.removeprefix("/api/datasets/"))
        elif path.startswith("/datasets/"):
            self._resolve(path.removeprefix("/datasets/"))
        elif path in self.server.pages:
            self._page(self.server.pages[path])
        else:
            self._send(404, b"")

    def _page(self, page: Page) -> None:
        self.server.ranges.append(self.headers["Range"])
        if page.open is not None:
            page.open.wait()
        if not re.fullmatch(page.user_agents, self.headers["User-Agent"]):
            return self._send(403, b"")
        if page.location is not None:
            return self._send(302, b"", Location=page.location)
        if page.status != 200:
            return self._send(page.status, b"")
        named = {} if page.etag is None else {"ETag": page.etag}
        begin = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        if page.ranges and begin and self.headers["If-Range"] in (None, page.etag):
            start = int(begin[1])
            if start >= len(page.body):
                return self._send(416, b"")
            return self._send(
                206,
                page.body[start:],
                cut=page.cuts.pop(0) if page.cuts else None,
                **named,
                Content_Range=f"bytes {start}-{len(page.body) - 1}/{len(page.body)}",
            )
        cut = page.cuts.pop(0) if page.cuts else None
        return self._send(200, page.body, cut=cut, length=page.length, **named)

    def _list(self, path: str) -> None:
        found = re.fullmatch(r"([^/]+/[^/]+)/tree/(.+)", path)
        assert found
        revision = next((name for name in self.server.revisions if found[2].startswith(f"{name}/")), None)
        files = self.server.datasets.get(found[1])
        if files is None:
            return self._send(404, b"", X_Error_Code="RepoNotFound")
        if revision is None:
            return self._send(404, b"", X_Error_Code="RevisionNotFound")
        folder = found[2].removeprefix(f"{revision}/")
        entries = [
            {
                "type": "file",
                "path": name,
                "size": len(body),
                "oid": "0" * 40,
                "lfs": {"oid": self._sum(name, body), "size": len(body), "pointerSize": 130},
            }
            for name, body in files.items()
            if name.startswith(f"{folder}/")
        ]
        return self._send(200, json.dumps(entries).encode(), Content_Type="application/json")

    def _resolve(self, path: str) -> None:
        found = re.fullmatch(r"([^/]+/[^/]+)/resolve/(.+)", path)
        assert found
        files = self.server.datasets.get(found[1])
        if files is None:
            return self._send(404, b"", X_Error_Code="RepoNotFound")
        revision = next((name for name in self.server.revisions if found[2].startswith(f"{name}/")), None)
        if revision is None:
            return self._send(404, b"", X_Error_Code="RevisionNotFound")
        name = found[2].removeprefix(f"{revision}/")
        if name not in files:
            return self._send(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        etag = f'"{self._sum(name, files[name])}"'
        return self._send(200, files[name], X_Repo_Commit=COMMIT, ETag=etag)

    def _sum(self, name: str, body: bytes) -> str:
        return self.server.sums.get(name, hashlib.sha256(body).hexdigest())

    def _send(self, status: int, body: bytes, *, cut: int | None = None, length: bool = True, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:cut])
            self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[MirrorServer]:
    server = MirrorServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
