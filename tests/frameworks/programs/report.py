# mypy: ignore-errors
"""The last line of every program: how often a compiler ran and how often its cache answered."""

import json


def report(compiled, reused):
    print(json.dumps({"compiled": compiled, "reused": reused}))


def counted(owner, name, calls):
    """Counts the calls of ``owner.name`` in ``calls``; each goes through as before."""
    real = getattr(owner, name)

    def call(*arguments, **options):
        calls.append(name)
        return real(*arguments, **options)

    setattr(owner, name, call)
