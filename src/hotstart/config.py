"""Configuration, and where each value came from.

Strongest first: arguments, ``HOTSTART_*``, ``hotstart.toml`` of the project (never
its trust settings: a checkout must not say whose code is run), the user's file,
the built-in default.
"""

from __future__ import annotations

import os

from .errors import UsageError
from .log import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .cache import Cache

_DEFAULTS: dict[str, Any] = {
    "home": "",
    "max_size": "10GiB",
    "memory": "128MiB",
    "policy": "cost",
    "read_only": False,
    "disable": False,
    "under": [],
    "remote": "",
    "scope": "main",
    "trust": "",
    "signing_key": "",
    "allow_unsigned": False,
    "offline": False,
}

#: Whose code is run here, and who signs for this machine, is not for a checkout to say.
_NOT_FOR_PROJECTS = {"trust", "signing_key", "allow_unsigned"}

_SHARING = ("scope", "trust", "signing_key", "allow_unsigned")

_SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class Config:
    """Settled values by name, and for each the place it was read from."""

    def __init__(self, values: dict[str, Any], sources: dict[str, str], *, remote_of_project: bool = False) -> None:
        self.values = values
        self.sources = sources
        self.remote_of_project = remote_of_project

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def open(self, **overrides: Any) -> Cache:
        """The cache these values describe; one that is off still takes every call."""
        from .cache import Cache

        if self.values["disable"]:
            return Cache(None, memory=0)
        arguments = {name: self.values[name] for name in ("max_size", "memory", "policy", "read_only", "under")}
        arguments |= self.sharing()
        arguments.update(overrides)
        path = arguments.pop("path", None) or f"{home_directory(self.values['home'])}/store"
        return Cache(path, **arguments)

    def sharing(self) -> dict[str, Any]:
        """The arguments of ``Cache`` for its remote.

        When there is none, or it is not to be used, still those that say what may be served of what came before.
        """
        settings = {name: self.values[name] for name in _SHARING}
        remote = self.values["remote"]
        if not remote or self.values["offline"]:
            return settings
        if self.remote_of_project:
            from .remote.url import read_only_chain

            # A checkout may say where to look. Where to send what is compiled here, it may not.
            remote = read_only_chain(remote)
        return {"remote": remote, **settings}


def load(project: str | None = None) -> Config:
    """Read the environment and the files. Raises UsageError naming the place of a value that makes no sense."""
    values, sources = dict(_DEFAULTS), dict.fromkeys(_DEFAULTS, "default")
    theirs = _project_file(project)
    for path in (_user_file(), theirs):
        if path is not None:
            for name, value in _read_toml(path).items():
                if path == theirs and name in _NOT_FOR_PROJECTS:
                    say("warning", f"{path}: {name} is for the user to set, and ignored here", once=f"{path} {name}")
                else:
                    _set(values, sources, name, value, path)
    for name in _DEFAULTS:
        variable = f"HOTSTART_{name.upper()}"
        text = os.environ.get(variable)
        if text:
            _set(values, sources, name, text, variable)
    return Config(values, sources, remote_of_project=theirs is not None and sources["remote"] == theirs)


def _set(values: dict[str, Any], sources: dict[str, str], name: str, value: Any, source: str) -> None:
    if name not in _DEFAULTS:
        say("warning", f"{source}: unknown setting {name!r} is ignored", once=f"setting {source} {name}")
        return
    default = _DEFAULTS[name]
    if isinstance(default, bool) and not isinstance(value, bool):
        switch = _SWITCHES.get(str(value).lower())
        if switch is None:
            raise UsageError(f"{source}: {name} is 1 or 0, not {value!r}")
        value = switch
    elif isinstance(default, list) and isinstance(value, str):
        value = value.split(os.pathsep)
    values[name], sources[name] = value, source


def _user_file() -> str | None:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    path = f"{base}/hotstart/hotstart.toml"
    return path if os.path.isfile(path) else None


def _project_file(start: str | None) -> str | None:
    """``hotstart.toml`` in this directory or the nearest one above."""
    try:
        directory = os.path.abspath(start or os.getcwd())
    except OSError:
        return None  # the working directory is gone
    while True:
        path = os.path.join(directory, "hotstart.toml")
        if os.path.isfile(path):
            return path
        parent = os.path.dirname(directory)
        if parent == directory:
            return None
        directory = parent


def _read_toml(path: str) -> dict[str, Any]:
    import tomllib

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error


def home_directory(configured: str = "") -> str:
    """Root of everything on this machine.

    ``HOTSTART_HOME``, else ``$XDG_CACHE_HOME/hotstart``, else ``~/.cache/hotstart``,
    else, when no home can be written, a directory of our own under ``$TMPDIR``.
    """
    if configured:
        return os.path.expanduser(configured)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(base) and _can_make(base):
        return f"{base}/hotstart"
    temporary = os.environ.get("TMPDIR") or "/tmp"
    user = os.geteuid() if hasattr(os, "geteuid") else "user"
    say("info", f"{base} cannot be written; using {temporary}", once="home")
    return f"{temporary}/hotstart-{user}"


def _can_make(path: str) -> bool:
    """Whether ``path`` is, or could be made, a directory we can write in; nothing is created to find out."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)
