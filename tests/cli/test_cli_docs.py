"""The documentation of the commands says what there is: no command, no option and no shell line that does not exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hotstart.cli import main as cli

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    DOCS / f"{name}.md"
    for name in (
        *("quickstart", "triton", "jax", "ci", "containers", "kubernetes", "troubleshooting", "commands"),
        *("sharing", "operations"),
    )
]


def options_of(call: Callable[..., tuple[int, str, str]], command: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", call(command, "--help")[1].partition("example")[0]))


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_option_is_documented(call: Callable[..., tuple[int, str, str]], command: str) -> None:
    text = (DOCS / "commands.md").read_text()
    assert f"`hotstart {command}" in text
    section = text.partition(f"\n## {command}\n")[2].partition("\n## ")[0]
    missing = options_of(call, command) - set(re.findall(r"--?[a-z][a-z-]*", section)) - {"--json", "--help", "-h"}
    assert missing == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_line_in_the_documentation_is_one(call: Callable[..., tuple[int, str, str]], page: Path) -> None:
    text = page.read_text()
    lines = re.findall(r"(?:^|[`(&-] ?)(hotstart [a-z][^`\n|>)&]*)", text, re.MULTILINE)
    assert lines
    for line in lines:
        words = shlex.split(line.rstrip("\\ …"), comments=True)
        command = words[1]
        if words[0] != "hotstart" or command not in cli.COMMANDS:
            pytest.fail(f"{page.name}: there is no command in {line!r}")
        known = options_of(call, command)
        given = words[2:]
        if command == "run":  # what follows the program is the program's
            taking = {"--name", "--only", "--grace", "--prefetch"}
            own: list[str] = []
            while given and (given[0].startswith("-") or (own and own[-1] in taking)) and given[0] != "--":
                own.append(given.pop(0))
            given = own
        unknown = {word for word in given if word.startswith("-") and not word[1:].isdigit()} - known - {"--json"}
        assert unknown == set(), f"{page.name}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (DOCS / target).exists(), target
