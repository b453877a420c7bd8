"""Following the includes of a source: the part of ``keys.headers`` that runs when a closure is not known."""

from __future__ import annotations

import os
from stat import S_ISDIR, S_ISREG

from ...errors import UncacheableError
from .. import memo
from ..digest import digest_of, encode
from . import exposure, lexer, preprocess, scanner
from .absent import Absent
from .manifest import VERSION, Manifest, read
from .marked import QUESTIONS
from .toolkits import toolkit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..memo import Identity
    from .lexer import Definition
    from .scanner import Include, Scan
    from .toolkits import Toolkit

#: More files than this are not the headers of a kernel; something includes the world.
_MOST_FILES = 20_000

#: Scans of this process, by path, each good for the identity the file had.
SCANS: dict[str, tuple[Identity, Scan]] = {}

#: Where a name was found: in memory, beside its includer, by itself (an absolute name), nowhere.
#: Otherwise the number of the -I directory.
MEMORY, BESIDE, ABSOLUTE, NOWHERE = -1, -2, -3, -4


class Node:
    """One file of the closure: the source, a header in memory or a header on disk."""

    __slots__ = ("directory", "edges", "inode", "label", "path", "scan", "spelled", "text", "toolkit")

    #: The name it was first included under.
    label: str
    #: Where it is; "" for what is in memory.
    path: str
    #: Where what it includes in quotes is looked for first, and how NVRTC spells that.
    directory: str
    spelled: str
    scan: Scan
    #: Its readings; None when it was not read this time.
    text: list[str] | None
    #: Device and inode, by which ``#pragma once`` knows it; None for what is only in memory.
    inode: tuple[int, int] | None
    #: The toolkit it belongs to; None for the user's own.
    toolkit: Toolkit | None
    #: For each directive, where its name was found.
    edges: dict[Include, list[tuple[int, Node | None]]]


class Search:
    """One search: the directories, the headers in memory, and what has been found so far."""

    def __init__(
        self, here: str, include_dirs: tuple[str, ...], headers: dict[str, str | bytes], source_dir: bool
    ) -> None:
        self.here = here
        self.spelled = [directory.rstrip("/") or "/" if directory else "" for directory in include_dirs]
        self.directories = [self._absolute(directory) for directory in self.spelled]
        self.toolkits = [toolkit(directory) for directory in self.directories]
        self.source_dir = source_dir
        self.memory: dict[str, str | bytes] = headers
        self.nodes: list[Node] = []
        self.known: dict[object, Node] = {}
        self.dirs: dict[str, tuple[int, int]] = {}
        self.reached: set[str] = set()
        self.macros: dict[str, dict[Definition, None]] = {}
        self.budget = preprocess.Budget()
        self.result = Manifest("", ())
        self.absent = Absent()
        self.lent: dict[str, Identity | None] = {}
        self.order: list[int] = []

    def _absolute(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.here}/{path}" if path else self.here

    def run(
        self,
        source: str | bytes,
        name: str,
        defines: tuple[str, ...],
        undefines: tuple[str, ...],
        pre_includes: tuple[str, ...],
        paths: bool,
    ) -> Manifest:
        """Everything reachable, as a manifest. Raises UncacheableError."""
        self._define("defines", defines)
        name = name or "default_program"
        if name in self.memory:
            raise UncacheableError(f"the source and a header in memory are both called {name}", "headers")
        # The source is found by its own name like a header in memory.
        self.memory[name] = source
        root = self._in_memory(name)
        command_line = self._node("-include", "", self.here, "")
        command_line.scan = scanner.scan((), "")
        for header in pre_includes:
            command_line.edges[scanner.QUOTED, header] = self._find(scanner.QUOTED, header, command_line, always=True)
        pool = self._follow()
        exposure.refuse_clocks(self, pool)
        quiet = "NDEBUG" in [text.partition("=")[0] for text in defines] and "NDEBUG" not in undefines
        # Headers before the source count in their order, and as often as they are named.
        first = sorted(set(pre_includes))
        self.order = [first.index(header) for header in pre_includes]
        return self._finish(root, name, pool, paths, quiet)

    def _define(self, field: str, texts: Iterable[str]) -> None:
        for position, text in enumerate(texts):
            head, equals, body = text.partition("=")
            line = f"#define {head} {body if equals else '1'}\n".encode("utf-8", "surrogateescape")
            made = [found for read in lexer.readings(line) for found in scanner.scan([read], "").definitions]
            if not made or line.count(b"\n") > 1 or b"\r" in line:
                raise UncacheableError(f"not the definition of a macro: {text!r}", f"{field}[{position}]")
            for found in made:
                self.macros.setdefault(found[0], {})[found] = None

    def _follow(self) -> exposure.Pool:
        """Scan what was found and find what it includes, until nothing new turns up."""
        done = 0
        while True:
            while done < len(self.nodes):
                node = self.nodes[done]
                done += 1
                if node.scan.doubt:
                    raise UncacheableError(f"{node.label} cannot be followed: {node.scan.doubt}", "headers")
                for made in node.scan.definitions:
                    self.macros.setdefault(made[0], {})[made] = None
                for kind, name in node.scan.includes:
                    self._include(node, kind, name)
            # What macros name depends on all definitions, also on those in files that are found only now:
            # that something cannot be followed is said when nothing more turns up.
            doubts: list[str] = []
            for node in self.nodes[:]:
                for after, operand in node.scan.computed:
                    self._computed(node, after, operand, doubts)
            pool = exposure.Pool(self)
            self._questions(pool, doubts)
            if done == len(self.nodes):
                if doubts:
                    raise UncacheableError(doubts[0], "headers")
                return pool

    def _include(self, node: Node, kind: str, name: str) -> None:
        if not name.isascii():
            name = os.fsdecode(name.encode("latin-1"))
        if "\0" not in name and (kind, name) not in node.edges:
            node.edges[kind, name] = self._find(kind, name, node)

    def _computed(self, node: Node, after: str, operand: str, doubts: list[str]) -> None:
        """Follow every file that ``#include operand`` can mean."""
        try:
            for kind, name in preprocess.file_names(operand, self.macros, self.budget):
                self._include(node, after + kind, name)
        except lexer.Unbounded as error:
            doubts.append(f"{operand[:60]} in {node.label}, which names a file, has no bound: {error}")

    def _questions(self, pool: exposure.Pool, doubts: list[str]) -> None:
        """Macros that ask ``__has_include`` for those who use them: what is asked where they are used."""
        asking = pool.spread(QUESTIONS).difference(QUESTIONS)
        if not asking:
            return
        for node in self.nodes[:]:
            if node.scan.words.isdisjoint(asking):
                continue
            calls: dict[str, None] = {}
            try:
                for text in self._text(node):
                    for name, argument in scanner.uses(scanner.outside(text), asking):
                        calls[name if argument is None else f"{name}({argument})"] = None
                for call in calls:
                    for text in preprocess.expansions(call, self.macros, self.budget, unknown=True):
                        self._ends_whole(text, asking)
                        for name, operand in scanner.asked(text):
                            self._computed(node, "+" if name.endswith("_next") else "", operand, doubts)
            except lexer.Unbounded as error:
                doubts.append(f"what {node.label} asks for through macros has no bound: {error}")

    def _ends_whole(self, text: str, asking: frozenset[str]) -> None:
        """Raises Unbounded when a text ends in a macro that asks, and is handed on without its arguments."""
        last = (lexer.words(text[-256:]) or [""])[-1]
        if text.endswith(last) and last in asking and any(made[1] is not None for made in self.macros[last]):
            raise lexer.Unbounded(f"{last} stands without its arguments")

    def _find(self, kind: str, name: str, node: Node, *, always: bool = False) -> list[tuple[int, Node | None]]:
        """Where a name leads from ``node``.

        One place; for ``include_next`` every place, because where that starts
        depends on how its own file was found.
        """
        if name in self.memory:
            return [(MEMORY, self._in_memory(name))]
        if name.startswith("/"):
            found = self._on_disk(name, name, "", name, None)
            return [(ABSOLUTE, found) if found else (NOWHERE, None)]
        every = kind.startswith("+")
        results: list[tuple[int, Node | None]] = []
        looked = (
            [(BESIDE, node.directory, node.spelled, node.toolkit)] if _beside(kind, self.source_dir, always) else []
        )
        looked += [
            (position, directory, self.spelled[position], self.toolkits[position])
            for position, directory in enumerate(self.directories)
        ]
        # A name without a dot is tried with this suffix as well, in each directory before the next.
        names = (name,) if "." in name[name.rfind("/") + 1 :] else (name, f"{name}.stdh")
        for position, directory, spelled, kit in looked:
            for tried in names:
                path = f"{directory}/{tried}"
                found = self._on_disk(path, tried, directory, f"{spelled}/{tried}" if spelled else tried, kit)
                if found:
                    results.append((position, found))
                    if not every:
                        return results
                    break
        return results or [(NOWHERE, None)]

    def _node(self, label: str, path: str, directory: str, spelled: str) -> Node:
        node = Node()
        node.label = label
        node.path = path
        node.directory = directory
        node.spelled = spelled
        node.text = None
        node.inode = None
        node.toolkit = None
        node.edges = {}
        self.nodes.append(node)
        if len(self.nodes) > _MOST_FILES:
            raise UncacheableError(f"it includes more than {_MOST_FILES} files", "headers")
        return node

    def _in_memory(self, name: str) -> Node:
        node = self.known.get(name)
        if node is None:
            folder = os.path.dirname(name)
            node = self.known[name] = self._node(name, "", self._absolute(folder), folder)
            content = self.memory[name]
            data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
            node.text = lexer.readings(data)
            node.scan = scanner.scan(node.text, digest_of(data))
            # A file of the same name on disk lends it an identity: #pragma once then takes the two for one.
            path = self._absolute(name)
            try:
                status = os.stat(path)
            except OSError:
                self.lent[path] = None
            else:
                node.inode = status.st_dev, status.st_ino
                self.lent[path] = memo.identity(status)
        return node

    def _on_disk(self, path: str, name: str, directory: str, spelled: str, kit: Toolkit | None) -> Node | None:
        """The file at ``path``, or None when the compiler would look further."""
        try:
            status = os.stat(path)
        except OSError:
            self.absent.add(directory, name)
            return None
        if not S_ISREG(status.st_mode):
            if S_ISDIR(status.st_mode):
                self.result.directories.append(path)
                return None
            raise UncacheableError(f"{name} is neither a file nor a directory: {path}", "headers")
        parent = os.path.dirname(path) or "/"
        if parent not in self.dirs:
            try:
                above = os.stat(parent)
            except OSError as error:
                raise UncacheableError(f"{name} disappears while it is read: {error}", "headers") from None
            self.dirs[parent] = above.st_dev, above.st_ino
        # Not by path: "../a/../a/x.h" is one more name for the same file at each turn.
        key = self.dirs[parent], os.path.basename(path)
        node = self.known.get(key)
        known = memo.identity(status)
        if node is None:
            node = self.known[key] = self._node(name, path, parent, os.path.dirname(spelled))
            node.inode = status.st_dev, status.st_ino
            if kit and kit.owns(path):
                node.toolkit = kit
            known = self._scan(node)
        if path not in self.reached:
            # Each path counts: behind one of them may be a symbolic link that is turned elsewhere.
            self.reached.add(path)
            if node.toolkit and node.toolkit.owns(path):
                self.absent.within(node.toolkit, parent)
            else:
                self._rests_on(path, known, node.scan.digest)
        return node

    def _scan(self, node: Node) -> Identity:
        """Read a file, or remember what was in it; the identity it has."""
        path = node.path
        try:
            kept = SCANS.get(path)
            if kept is not None and memo.identity(os.stat(path)) == kept[0]:
                known, node.scan = kept
            else:
                data, known = read(path)
                node.text = lexer.readings(data)
                node.scan = scanner.scan(node.text, digest_of(data))
        except OSError as error:
            raise UncacheableError(f"{node.label} cannot be read: {error}", "headers") from None
        if memo.settled(known):
            if len(SCANS) > 2 * _MOST_FILES:
                SCANS.clear()
            SCANS[path] = known, node.scan
        return known

    def _rests_on(self, path: str, known: Identity, digest: str = "") -> None:
        if memo.settled(known):
            self.result.files.append((path, known))
        elif digest:
            self.result.young.append((path, known, digest))
        else:
            self.result.perishable = True

    def _text(self, node: Node) -> list[str]:
        """The readings of a file, read again when they are not at hand."""
        if node.text is None:
            try:
                data, _ = read(node.path)
            except OSError as error:
                raise UncacheableError(f"{node.label} cannot be read: {error}", "headers") from None
            if digest_of(data) != node.scan.digest:
                raise UncacheableError(f"{node.label} changes while it is read", "headers")
            node.text = lexer.readings(data)
        return node.text

    def _finish(self, root: Node, name: str, pool: exposure.Pool, paths: bool, quiet: bool) -> Manifest:
        result = self.result
        number = {id(node): index for index, node in enumerate(self.nodes)}
        same: dict[tuple[int, int], int] = {}
        described = []
        for index, node in enumerate(self.nodes):
            edges = [
                (
                    kind,
                    included,
                    position,
                    number[id(found)] if found else NOWHERE,
                    bool(found and _suffixed(found, included)),
                )
                for (kind, included), places_found in sorted(node.edges.items(), key=lambda item: item[0])
                for position, found in places_found
            ]
            one = same.setdefault(node.inode, index) if node.inode else index
            described.append((node.scan.digest if node is not root else "", one, edges))
        shown: tuple[object, ...] = ()
        if paths:
            shown = (self.here, os.environ.get("PWD", ""), name, tuple(self.spelled))
        else:
            shown = exposure.shown(self, pool, root, quiet)
        content = (VERSION, os.path.basename(name), described, self.order, shown)
        result.digest = digest_of(encode(content))
        result.names = tuple([node.label for node in self.nodes[2:] if not node.toolkit])
        self.absent.settle(result, self.toolkits)
        # Only #pragma once asks which file is which, and only of files.
        if any(node.path for node in self.nodes) and any(_once(node) for node in self.nodes):
            for path, known in self.lent.items():
                if known is None:
                    result.absent.append(path)
                else:
                    self._rests_on(path, known)
        return result


def _once(node: Node) -> bool:
    # In a definition it can stand only as _Pragma or __pragma, whose name is then a word of its user or of a body.
    if not node.scan.words.isdisjoint(("once", "_Pragma", "__pragma")):
        return True
    return any("ragma" in body for _, _, body in node.scan.definitions)


def _beside(kind: str, source_dir: bool, always: bool) -> bool:
    return always or (source_dir and kind.endswith('"'))


def _suffixed(found: Node, included: str) -> bool:
    return found.path.endswith(".stdh") and not included.endswith(".stdh")
