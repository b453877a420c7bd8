"""``hotstart env``."""

from __future__ import annotations

import os

from ..errors import UsageError
from .options import Parser
from .output import print_json

_SHELLS = ("sh", "fish", "csh", "docker")


def main(arguments: list[str]) -> int:
    parser = Parser(
        "env",
        "The environment that hotstart run sets, for those who cannot wrap their program. What is\n"
        "compiled then stays in the redirected directories; the next hotstart run takes it in.",
        'eval "$(hotstart env)"',
        "hotstart env --only torch,triton --shell fish | source",
        "hotstart env --shell docker > hotstart.env",
    )
    parser.add_argument("--only", metavar="LIST", help="these frameworks alone, with commas between them")
    parser.add_argument("--force", action="store_true", help="also what you have set yourself")
    parser.add_argument("--shell", choices=_SHELLS, help="how to write it (default: as $SHELL reads it)")
    options = parser.parse_args(arguments)
    from ..launch.environment import exports

    only = None
    if options.only is not None:
        from .run import frameworks

        only = frameworks("env", options.only)
    variables = exports(only, force=options.force)
    if options.json:
        print_json(variables)
        return 0
    shell = options.shell or _usual()
    for name, value in variables.items():
        print(written(shell, name, value))
    return 0


def _usual() -> str:
    name = os.path.basename(os.environ.get("SHELL") or "sh")
    return {"fish": "fish", "csh": "csh", "tcsh": "csh"}.get(name, "sh")


def written(shell: str, name: str, value: str) -> str:
    """One line that sets ``name`` in that shell, whatever ``value`` holds."""
    if shell == "docker":
        if "\n" in value:
            raise UsageError(f"env: {name} has a line break, which a docker env file cannot hold")
        return f"{name}={value}"
    if shell == "fish":
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"set -gx {name} '{quoted}'"
    quoted = value.replace("'", "'\\''")
    if shell == "csh":
        quoted = quoted.replace("!", "\\!").replace("\n", "\\\n")
        return f"setenv {name} '{quoted}'"
    return f"export {name}='{quoted}'"
