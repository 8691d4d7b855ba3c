"""Parts are registered under a kind and a name, and files appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_xl import registry
from transformer_xl.errors import UserError, atomic_write


@pytest.fixture(autouse=True)
def _own_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_entries", {kind: dict(found) for kind, found in registry._entries.items()})


def test_a_part_is_found_by_its_kind_and_name() -> None:
    @registry.register("callback", "shout", config=dict)
    def shout() -> None: ...

    entry = registry.lookup("callback", "shout")
    assert (entry.factory, entry.config) == (shout, dict)
    assert "shout" in registry.names("callback")
    assert entry in registry.outside("callback")


def test_unknown_and_taken_names_are_refused_and_the_same_part_may_be_defined_again() -> None:
    def part() -> None: ...

    def other() -> None: ...

    registry.register("callback", "shout")(part)
    registry.register("callback", "shout")(part)
    with pytest.raises(UserError, match="is taken"):
        registry.register("callback", "shout")(other)
    with pytest.raises(UserError, match=r"no callback 'shuot'.*shout"):
        registry.lookup("callback", "shuot")
    with pytest.raises(UserError, match=r"'calback' is no kind.*callback"):
        registry.register("calback", "shout")


@pytest.mark.parametrize(("mode", "content"), [("w", "é\n"), ("wb", b"\x00\xff")])
def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path: Path, mode: str, content: str | bytes) -> None:
    path = tmp_path / "file"
    with atomic_write(path, mode) as file:
        file.write(content)
        assert not path.exists()
    with pytest.raises(ZeroDivisionError), atomic_write(path) as file:
        file.write(str(1 / 0))
    assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    assert list(tmp_path.iterdir()) == [path]
