"""``hotstart config``."""

from __future__ import annotations

from .options import Parser
from .output import print_json, say, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(arguments: list[str]) -> int:
    parser = Parser(
        "config",
        "Every setting, its value and where that came from: an environment variable, a file, the default.",
        "hotstart config",
        "hotstart config max_size",
    )
    parser.add_argument("name", nargs="?", help="only this setting: its value and nothing else")
    options = parser.parse_args(arguments)
    from ..config import home_directory, load
    from ..errors import UsageError

    config = load()
    values = {name: _hidden(name, value) for name, value in config.values.items()}
    if "home" in values:
        values["home"] = home_directory(config["home"])
    if options.name is not None:
        if options.name not in values:
            raise UsageError(f"config: no setting is called {options.name!r}; there are {', '.join(sorted(values))}")
        shown = values[options.name]
        if options.json:
            print_json({"value": shown, "from": config.sources[options.name]})
        else:
            say(_text(shown))
        return 0
    if options.json:
        print_json({name: {"value": value, "from": config.sources[name]} for name, value in values.items()})
        return 0
    rows = [(name, _text(value), config.sources[name]) for name, value in values.items()]
    say(table(("setting", "value", "from"), rows))
    return 0


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (list, tuple)):
        import os

        return os.pathsep.join(map(str, value)) or "–"
    return str(value) if value not in ("", None) else "–"


def _hidden(name: str, value: Any) -> Any:
    """Without the passwords that URLs of remotes may hold."""
    if name != "remote" or not value:
        return value
    from ..remote.url import show_chain

    return show_chain(str(value))
