"""Prompts as the user gives them, before it is known which vocabulary says them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from transformer_xl.commands.closed_pipe import standard_input
from transformer_xl.errors import UserError
from transformer_xl.inference_config import GenerateConfig


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt.

    Attributes:
        where: it comes from, for messages.
        text: of the command line or a terminal; bytes of a file; empty: a text is to be begun.
    """

    where: str
    text: str | bytes


def read_prompts(config: GenerateConfig) -> list[Prompt]:
    """Read all prompts; without any, one that is empty.

    Raises:
        UserError: a file that cannot be read, or one without a line, where each is to be a prompt.
    """
    if config.prompt_file is None:
        return [Prompt(where="prompt", text=config.prompt or "")]
    name = "standard input" if config.prompt_file == "-" else config.prompt_file
    contents = _contents(config.prompt_file)
    if config.prompt_unit == "file":
        return [Prompt(where=name, text=without_line_end(contents))]
    if not contents:
        raise UserError(f"prompt_file is {config.prompt_file}, and holds no line")
    lines = contents.removesuffix(b"\n").split(b"\n")
    return [
        Prompt(where=f"line {number} of {name}", text=line.removesuffix(b"\r"))
        for number, line in enumerate(lines, start=1)
    ]


def without_line_end(contents: bytes) -> bytes:
    """Leave out the line end with which programs close a text, so that its last line can be gone on with."""
    return contents[:-1].removesuffix(b"\r") if contents.endswith(b"\n") else contents


def _contents(prompt_file: str) -> bytes:
    if prompt_file == "-":
        return standard_input().read()
    try:
        return Path(os.path.expanduser(prompt_file)).read_bytes()
    except OSError as error:
        raise UserError(f"prompt_file={prompt_file} cannot be read: {error.strerror}") from error
