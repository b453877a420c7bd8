"""``python -m hotstart``: the command line, where no script was installed."""

from __future__ import annotations

from .cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
