"""A server on this machine: a Hub of models and datasets, pages that may misbehave, and a log of what it was asked."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Page:
    """A file at an address; `cuts`: after how many bytes each answer ends, one after the other, then all is sent."""

    body: bytes = b""
    status: int = 200
    cuts: list[int] = field(default_factory=list)
    open: threading.Event | None = None


class HubServer(ThreadingHTTPServer):
    """Serves repositories from folders; `codes` maps one to the error that it answers instead. Pages are by path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Path] = {}
        self.revisions = {"main", COMMIT}
        self.codes: dict[str, str] = {}
        self.pages: dict[str, Page] = {}
        self.asked: list[str] = []
        self.ranges: list[str | None] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, path: str, body: bytes = b"", **page: object) -> str:
        """Put a page at a path; return its address."""
        self.pages[path] = Page(body, **page)  # type: ignore[arg-type]
        return self.endpoint + path

    def fetched(self, repository: str) -> list[str]:
        """Return the files of a repository that were sent."""
        found = (re.fullmatch(rf"GET .*{repository}/resolve/\w+/(.*)", line) for line in self.asked)
        return [match[1] for match in found if match]


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        if path in self.server.pages:
            return self._page(self.server.pages[path])
        found = re.fullmatch(r"/(?:api/models/|(?:api/)?datasets/)?([^/]+/[^/]+)/(revision|tree|resolve)/(.+)", path)
        if found is None:
            return self._send(404)
        repository, action, rest = found.groups()
        if code := self.server.codes.get(repository):
            return self._send(403 if code == "GatedRepo" else 401, X_Error_Code=code)
        if repository not in self.server.repositories:
            return self._send(404, X_Error_Code="RepoNotFound")
        revision = next((name for name in self.server.revisions if f"{rest}/".startswith(f"{name}/")), None)
        if revision is None:
            return self._send(404, X_Error_Code="RevisionNotFound")
        folder = self.server.repositories[repository]
        if action == "resolve":
            return self._file(folder / rest.removeprefix(f"{revision}/"))
        names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
        files = [
            {"type": "file", "path": name, "oid": "0" * 40, "size": (folder / name).stat().st_size} for name in names
        ]
        about = {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
        body = json.dumps(about if action == "revision" else files).encode()
        return self._send(200, body, Content_Type="application/json")

    def _file(self, file: Path) -> None:
        if not file.is_file():
            return self._send(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        body = file.read_bytes()
        return self._send(200, body, X_Repo_Commit=COMMIT, ETag=f'"{hashlib.sha256(body).hexdigest()}"')

    def _page(self, page: Page) -> None:
        self.server.ranges.append(self.headers["Range"])
        if page.open is not None:
            page.open.wait()
        if page.status != 200:
            return self._send(page.status)
        begin = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        start = int(begin[1]) if begin else 0
        if start >= len(page.body):
            return self._send(416)
        return self._send(206 if begin else 200, page.body[start:], cut=page.cuts.pop(0) if page.cuts else None)

    def _send(self, status: int, body: bytes = b"", *, cut: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:cut])
            self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[HubServer]:
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def hub_on_this_machine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[HubServer]:
    """Serve a Hub that the client takes for the real one, with its cache in a folder."""
    with serving() as server:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
        yield server
