"""``hotstart doctor``."""

from __future__ import annotations

import os

from .options import Parser
from .output import paint, print_json, say
from .progress import Waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..insight.doctor import Finding

_SIGNS = {"error": ("✗", "red"), "warning": ("!", "yellow"), "note": ("·", "blue"), "ok": ("✓", "green")}


def main(arguments: list[str]) -> int:
    parser = Parser(
        "doctor",
        "Check this environment: where the cache lies, what is in it, what runs. Each finding comes\n"
        "with a remedy. Exit status 1 if there is an error, with --strict also for a warning.",
        "hotstart doctor",
        "hotstart doctor train.py      # also the order of imports around hotstart.init()",
    )
    parser.add_argument("script", nargs="?", default="", help="a program whose imports to look at")
    parser.add_argument("--strict", action="store_true", help="exit status 1 for warnings too")
    parser.add_argument("--python", default="", metavar="PATH", help="the interpreter whose packages to look at")
    options = parser.parse_args(arguments)
    with Waiting("examining"):
        findings = _examine(options.script, options.python)
    levels = {finding.level for finding in findings}
    status = 1 if "error" in levels or (options.strict and "warning" in levels) else 0
    if options.json:
        print_json({"status": status, "findings": [finding.plain() for finding in findings]})
    else:
        _show(findings)
    return status


def _examine(script: str, python: str) -> list[Finding]:
    from ..config import home_directory, load
    from ..errors import UsageError
    from ..insight.doctor import ERROR, Finding, Patient, examine
    from ..store.sizes import parse_size

    trouble = []
    under: list[str] = []
    home, budget = home_directory(os.environ.get("HOTSTART_HOME", "")), 10 << 30
    try:
        config = load()
        home = home_directory(config["home"])
        under = [path for path in config["under"] if path]
        budget = parse_size(config["max_size"], config.sources["max_size"])
    except UsageError as error:
        # The first thing a newcomer gets wrong: everything else is examined as if it were not set.
        trouble.append(Finding(ERROR, str(error), "correct it; hotstart config shows every setting"))
        trouble[0].check = "configuration"
    return [*trouble, *examine(Patient(home, budget=budget, script=script, python=python, under=under))]


def _show(findings: list[Finding]) -> None:
    from ..insight import words

    width = max(len(finding.check) for finding in findings)
    said = ""
    for finding in findings:
        sign, style = _SIGNS[finding.level]
        check = finding.check if finding.check != said else ""
        said = finding.check
        say(f"{paint(sign, style)} {check:{width}}  {finding.text or 'fine'}".rstrip())
        if finding.remedy:
            say(paint(f"  {'':{width}}  → {finding.remedy}", "dim"))
    counted = {level: sum(finding.level == level for finding in findings) for level in ("error", "warning", "note")}
    parts = [words.count(number, level) for level, number in counted.items() if number]
    say()
    say(", ".join(parts) if parts else "Everything is fine.")
