"""``hotstart push``, ``pull``, ``trust`` and ``remote``: thin over ``remote`` and ``trust``.

Four commands in one module, so ``main`` takes the command as its first word.
"""

from __future__ import annotations

import argparse
import os

from .. import log
from ..errors import HotstartError, UsageError
from .options import Parser, configured, seconds
from .output import print_json, say, table
from .progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..cache import Cache
    from ..config import Config
    from ..remote.tier import RemoteTier
    from ..remote.workloads import Transfer
    from ..store.local import LocalStore
    from ..trust.scope import TrustList


def main(arguments: list[str]) -> int:
    commands = {"push": push, "pull": pull, "trust": trust, "remote": remote}
    if not arguments or arguments[0] not in commands:
        raise UsageError(f"sharing: one of {', '.join(commands)}")
    return commands[arguments[0]](arguments[1:])


def push(arguments: list[str]) -> int:
    parser = Parser(
        "push",
        "Publish what is in the store as a named workload, signed: packs of at most 64 MB and a manifest.\n"
        "What is there already is not sent again; what others signed is left out.",
        "hotstart push train",
        "hotstart push train --kind triton",
    )
    parser.add_argument("name", nargs="?", help="the workload, as hotstart run calls it")
    parser.add_argument("--kind", help="only entries of this kind; hotstart ls --json shows kinds")
    options = parser.parse_args(arguments)
    name = _workload("push", options.name)
    _check_signing("push")
    cache, tier, disk = _shared("push")
    from ..remote.contract import RemoteError
    from ..remote.pushing import push as send

    before = log.said()
    try:
        with _Bar("pushing") as step:
            done = send(tier, disk, name, cache.digests(options.kind), step)
    except RemoteError:
        if log.said() == before:
            raise
        return 1  # its guard has said why
    finally:
        cache.close()
    return _say_transfer(done, options, "pushed", f"workload {options.name}")


def pull(arguments: list[str]) -> int:
    parser = Parser(
        "pull",
        "Bring what a named workload needs into the store: one request for the manifest and one a pack for what is\n"
        "missing here. Interrupted, it goes on where it ended. Exit status 1 when there is no such workload.",
        "hotstart pull train",
    )
    parser.add_argument("name", nargs="?", help="the workload, as hotstart run calls it")
    options = parser.parse_args(arguments)
    name = _workload("pull", options.name)
    from ..launch import state
    from ..remote.workloads import pull as bring

    before = log.said()
    cache, tier, disk = _shared("pull")
    try:
        with _Bar("pulling") as step:
            done = bring(tier, disk, name, step)
    finally:
        cache.close()
        # Also of a pull that was interrupted: the next run has to see what came.
        state.forget(os.path.abspath(configured()[1]))
    if not done.found and not options.json:
        if log.said() == before:
            why = "did not answer" if done.unanswered else f"has no workload {options.name}"
            raise HotstartError(f"{tier.remotes[-1].shown} {why}")
        return 1  # why it cannot be used was said
    _say_transfer(done, options, "pulled", f"workload {options.name}")
    return 0 if done.found and not done.failed else 1


def remote(arguments: list[str]) -> int:
    parser = Parser(
        "remote",
        "gc: remove from the remote what is old, what nobody refers to, or the oldest down to a size.\n"
        "From listings: nothing but manifests is read.",
        "hotstart remote gc --older-than 30d",
        "hotstart remote gc --max-size 50GiB --scope pr-7 --dry-run",
    )
    parser.add_argument("what", nargs="?", choices=["gc"], help="what to do")
    parser.add_argument("--older-than", type=seconds, metavar="TIME", help="written longer ago than this: 30d")
    parser.add_argument("--max-size", metavar="SIZE", help='leave at most this: "50GiB"')
    parser.add_argument("--scope", action="append", metavar="SCOPE", help="only this scope; may be repeated")
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")
    options = parser.parse_args(arguments)
    if options.what is None:
        parser.error("say what to do: gc")
    from ..insight import words
    from ..remote.contract import RemoteError
    from ..remote.hygiene import collect
    from ..store.sizes import parse_size

    size = parse_size(options.max_size, "--max-size", zero=True) if options.max_size is not None else None
    before = log.said()
    cache, tier, _ = _shared("remote gc")
    limits = {"older_than": options.older_than, "max_size": size, "scopes": options.scope}
    try:
        done = collect(tier, dry_run=options.dry_run, **limits)
    except RemoteError:
        if log.said() == before:
            raise
        return 1  # its guard has said why
    finally:
        cache.close()
    if options.json:
        print_json({"dry_run": options.dry_run, **done.as_dict()})
        return 0
    verb = "would remove" if options.dry_run else "removed"
    say(f"{verb} {words.count(done.objects, 'object')}, {words.size(done.bytes)}")
    say(f"{words.count(done.left_objects, 'object')} left, {words.size(done.left_bytes)}")
    return 0


def trust(arguments: list[str]) -> int:
    parser = Parser(
        "trust",
        "Whose entries are run here. keygen makes a key to sign with and prints its public half; add trusts one\n"
        "for scopes; remove trusts it no more and removes what came from it; list shows who is trusted.",
        "hotstart trust keygen",
        "hotstart trust add ed25519:… --scope main --name ci",
        "hotstart trust remove 3f9c",
    )
    parser.add_argument("action", nargs="?", choices=["keygen", "add", "list", "remove"])
    parser.add_argument("key", nargs="?", help="add: the public key; remove: the beginning of its id")
    parser.add_argument("--scope", action="append", metavar="SCOPE", help="add: trusted for this; pr-* for many")
    parser.add_argument("--name", default="", help="add: whose key it is")
    parser.add_argument("--file", help="keygen: where to keep the key; else: the list of trusted keys")
    options = parser.parse_args(arguments)
    if options.action is None:
        parser.error("say what to do: keygen, add, list or remove")
    if options.action in ("add", "remove") and not options.key:
        parser.error(f"say which key to {options.action}")
    if options.action in ("keygen", "list") and options.key:
        parser.error(f"{options.action} takes no key")
    if options.action == "add" and not options.scope:
        parser.error("say for which scopes the key is trusted: --scope main, or --scope 'pr-*'")
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "keygen": _keygen, "add": _add, "list": _list, "remove": _remove,
    }  # fmt: skip
    return actions[options.action](options)


def _keygen(options: argparse.Namespace) -> int:
    from ..trust.signing import default_key_file, keygen

    config, _ = configured()
    path = os.path.expanduser(options.file or config["signing_key"] or default_key_file())
    public = keygen(path)
    if options.json:
        print_json({"file": path, "public": str(public), "id": public.id})
        return 0
    say(f"{path} is the key to sign with; keep it to yourself. On machines that are to trust it:")
    say(f"  hotstart trust add {public} --scope main")
    return 0


def _add(options: argparse.Namespace) -> int:
    from ..trust.signing import PublicKey

    trusted = _trust_list(options)
    key = PublicKey.parse(options.key)
    trusted.add(key, options.scope, options.name)
    if options.json:
        print_json({"file": trusted.path, "id": key.id})
    else:
        say(f"entries signed by {key.id} for {', '.join(options.scope)} are run here from now on")
    return 0


def _list(options: argparse.Namespace) -> int:
    trusted = _trust_list(options)
    if options.json:
        print_json([{"id": each.key.id, "key": str(each.key), "scopes": each.scopes, "name": each.name,
                     "revoked": each.revoked} for each in trusted])  # fmt: skip
        return 0
    rows = [(each.key.id, "revoked" if each.revoked else ", ".join(each.scopes), each.name) for each in trusted]
    say(table(("key", "trusted for", "name"), rows) if rows else f"{trusted.path} trusts nobody")
    return 0


def _remove(options: argparse.Namespace) -> int:
    from ..insight import words
    from ..remote.hygiene import forget_signer

    trusted = _trust_list(options)
    gone = trusted.revoke(options.key)
    config, _ = configured()
    removed: list[str] = []
    restored = 0
    if not config["disable"]:
        from .options import open_store

        # Before the entries: where it is not noted whose files they are, the entries say it.
        restored = _remove_restored(config, gone.key.id)
        disk = open_store().disk
        if disk is not None:
            removed = forget_signer(disk, gone.key.id)
    if options.json:
        print_json({"id": gone.key.id, "removed": removed, "files": restored})
        return 0
    also = f" and {words.count(restored, 'file')} restored from them" if restored else ""
    what = words.count(len(removed), "entry", "entries")
    say(f"{gone.key.id} is revoked; removed {what} that came signed by it{also}")
    return 0


def _remove_restored(config: Config, key_id: str) -> int:
    """Files of the redirected directories that came signed by this key, removed; how many."""
    from ..config import home_directory
    from ..launch.environment import FRAMEWORKS
    from ..launch.foreign import remove_signed
    from ..launch.session import Session

    home = os.path.abspath(home_directory(config["home"]))
    session = Session(config, home, f"{home}/{FRAMEWORKS}", (), "trust")
    try:
        return remove_signed(session, key_id)
    except OSError as error:
        raise UsageError(f"the key is revoked, but {error}; do it again when that has ended") from None
    finally:
        session.end()


def _trust_list(options: argparse.Namespace) -> TrustList:
    from ..trust.scope import TrustList
    from ..trust.signing import default_trust_file

    config, _ = configured()
    return TrustList.load(os.path.expanduser(options.file or config["trust"] or default_trust_file()))


def _workload(command: str, name: str | None) -> str:
    """What the workload is called in a remote. Raises UsageError."""
    if not name:
        raise UsageError(f"{command}: say which workload; hotstart {command} --help shows an example")
    from ..launch.names import check_name, shared_name

    return shared_name(check_name(name))


def _shared(command: str) -> tuple[Cache, RemoteTier, LocalStore]:
    """The configured cache, its remote and its disk. Raises UsageError when there is no remote to speak of."""
    config = _with_remote(command)
    from ..remote.url import open_remotes
    from ..trust.scope import parse_scopes

    # A cache says what is wrong with these and goes on without a remote: here that is the end.
    open_remotes(config["remote"])
    parse_scopes(config["scope"])
    cache = config.open(memory=0, under=[])
    tier = cache.sharing.tier if cache.sharing is not None else None
    if tier is None or cache.disk is None:
        raise UsageError(f"{command}: the remote cannot be used")
    return cache, tier, cache.disk


def _with_remote(command: str) -> Config:
    config, _ = configured()
    if config["disable"]:
        raise UsageError(f"{command}: hotstart is turned off by {config.sources['disable']}")
    if config["offline"]:
        raise UsageError(f"{command}: {config.sources['offline']} says to leave the remote alone")
    if not config["remote"]:
        raise UsageError(f"{command}: no remote is set; HOTSTART_REMOTE=s3://bucket/prefix, see docs/sharing.md")
    return config


def _check_signing(command: str) -> None:
    """Raises UsageError for a key that cannot be signed with: a tier would only say so, and publish nothing."""
    config = _with_remote(command)
    from ..trust.signing import SigningKey, default_key_file

    path = os.path.expanduser(config["signing_key"] or default_key_file())
    if config["signing_key"] or not config["allow_unsigned"]:
        SigningKey.load(path)


class _Bar:
    """A bar for what reports (done, total)."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._bar: Progress | None = None
        self._done = 0

    def __enter__(self) -> Callable[[int, int], None]:
        return self._step

    def _step(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = Progress(self._what, total)
        self._bar.step(done - self._done)
        self._done = done

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _say_transfer(done: Transfer, options: argparse.Namespace, verb: str, what: str) -> int:
    if options.json:
        print_json(done.as_dict())
        return 0
    from ..insight import words

    parts = [f"{verb} {words.count(done.entries, 'entry', 'entries')}, {words.size(done.bytes)}"]
    if done.present:
        parts.append(f"{done.present:,} were there")
    if done.foreign:
        parts.append(f"{done.foreign:,} signed by others left out")
    if done.failed:
        parts.append(f"{done.failed:,} failed")
    say(f"{what}: {'; '.join(parts)} ({words.count(done.requests, 'request')})")
    return 0
