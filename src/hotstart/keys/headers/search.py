"""Following the includes of a source: the part of ``keys.headers`` that runs when a closure is not known."""

from __future__ import annotations

import os
import re
from stat import S_ISDIR, S_ISREG

from ...errors import UncacheableError
from .. import memo
from ..digest import digest_of, encode
from . import exposure, places, preprocess, scanner
from .manifest import VERSION, Manifest, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..memo import Identity
    from .scanner import Definition, Include, Scan

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
    #: The text as ``scanner.prepare`` left it, and whether that was certain; None when it was not read this time.
    text: tuple[str, bool] | None
    #: Device and inode, by which ``#pragma once`` knows it; None for what is only in memory.
    inode: tuple[int, int] | None
    #: The toolkit directory it belongs to; "" for the user's own.
    toolkit: str
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
        self.toolkits = [places.toolkit(directory) for directory in self.directories]
        self.source_dir = source_dir
        self.memory: dict[str, str | bytes] = headers
        self.nodes: list[Node] = []
        self.known: dict[object, Node] = {}
        self.dirs: dict[str, tuple[int, int]] = {}
        self.reached: set[str] = set()
        self.macros: dict[str, dict[Definition, None]] = {}
        self.result = Manifest("", ())
        self.absent = places.Absent()
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
        command_line.scan = scanner.scan("", True, "")
        for header in pre_includes:
            command_line.edges[scanner.QUOTED, header] = self._find(scanner.QUOTED, header, command_line, always=True)
        self._follow()
        exposure.refuse_clocks(self)
        quiet = "NDEBUG" in [text.partition("=")[0] for text in defines] and "NDEBUG" not in undefines
        # Headers before the source count in their order, and as often as they are named.
        first = sorted(set(pre_includes))
        self.order = [first.index(header) for header in pre_includes]
        return self._finish(root, name, paths, quiet)

    def _define(self, field: str, texts: Iterable[str]) -> None:
        for position, text in enumerate(texts):
            head, equals, body = text.partition("=")
            match = re.match(r"[ \t]*([A-Za-z_]\w*)(.*)", head.encode("utf-8", "surrogateescape").decode("latin-1"))
            if match is None:
                raise UncacheableError(f"not the definition of a macro: {text!r}", f"{field}[{position}]")
            made = scanner.definition(match[1], f"{match[2]} {body if equals else '1'}")
            self.macros.setdefault(made[0], {})[made] = None

    def _follow(self) -> None:
        """Scan what was found and find what it includes, until nothing new turns up."""
        done = 0
        while True:
            while done < len(self.nodes):
                node = self.nodes[done]
                done += 1
                for made in node.scan.definitions:
                    self.macros.setdefault(made[0], {})[made] = None
                for kind, name in node.scan.includes:
                    self._include(node, kind, name)
            # What macros name depends on all definitions, also on those in files that are found only now.
            for node in self.nodes[:]:
                for after, operand in node.scan.computed:
                    for kind, name in self._computed(node, after, operand):
                        self._include(node, kind, name)
            self._questions()
            if done == len(self.nodes):
                return

    def _include(self, node: Node, kind: str, name: str) -> None:
        if not name.isascii():
            name = os.fsdecode(name.encode("latin-1"))
        if "\0" not in name and (kind, name) not in node.edges:
            node.edges[kind, name] = self._find(kind, name, node)

    def _computed(self, node: Node, after: str, operand: str) -> set[Include]:
        """Every file that ``#include operand`` can mean."""
        if operand == "__FILE__":
            # The file itself, which is here already.
            return set()
        try:
            texts = preprocess.expansions(operand, self.macros)
        except preprocess.Unbounded as error:
            raise UncacheableError(f"#include {operand} in {node.label} has no bound: {error}", "headers") from None
        found: set[Include] = set()
        for text in texts:
            text = text.lstrip(" ")
            if text.startswith('"') and '"' in text[1:]:
                found.add((after + '"', text[1 : text.index('"', 1)]))
            elif text.startswith("<") and ">" in text:
                inside = text[1 : text.index(">")]
                # Spaces come and go between tokens; each way to keep them is a name of its own.
                for name in (inside, inside.rstrip(" "), inside.strip(" "), inside.replace(" ", "")):
                    found.add((after + "<", name))
        return {(kind, name) for kind, name in found if name}

    def _questions(self) -> None:
        """Macros that ask ``__has_include`` for those who use them: what is asked through them."""
        asking = frozenset(
            [name for name, made in self.macros.items() if any(scanner.ASKS.search(body) for _, _, body in made)]
        )
        if not asking:
            return
        asking |= exposure.spread(asking, self.macros)
        calls = re.compile(rf"\b(?:{'|'.join(asking)})[ \t]*\([^\n]*")
        for node in self.nodes[:]:
            text, certain = self.text(node, asking)
            if not any(name in text for name in asking):
                continue
            found = calls.findall(scanner.outside(text) if certain else text)
            for _, parameters, body in node.scan.definitions:
                # What it asks with its parameters, it asks where it is used.
                for call in calls.findall(body):
                    if not set(re.findall(r"\w+", call)).intersection(parameters or ()):
                        found.append(call)
            for call in found:
                self._ask(node, _call(call))

    def _ask(self, node: Node, call: str) -> None:
        try:
            texts = preprocess.expansions(call, self.macros)
        except preprocess.Unbounded as error:
            raise UncacheableError(f"{call[:60]} in {node.label} has no bound: {error}", "headers") from None
        for text in texts:
            for kind, name in scanner.scan(text, True, "").includes:
                self._include(node, kind, name)

    def _find(self, kind: str, name: str, node: Node, *, always: bool = False) -> list[tuple[int, Node | None]]:
        """Where a name leads from ``node``.

        One place; for ``include_next`` every place, because where that starts
        depends on how its own file was found.
        """
        if name in self.memory:
            return [(MEMORY, self._in_memory(name))]
        if name.startswith("/"):
            found = self._on_disk(name, name, "", name, "")
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
        for position, directory, spelled, toolkit in looked:
            for tried in names:
                path = f"{directory}/{tried}"
                found = self._on_disk(path, tried, directory, f"{spelled}/{tried}" if spelled else tried, toolkit)
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
        node.toolkit = ""
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
            node.text = scanner.prepare(data)
            node.scan = scanner.scan(*node.text, digest_of(data))
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

    def _on_disk(self, path: str, name: str, directory: str, spelled: str, toolkit: str) -> Node | None:
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
            if toolkit and places.inside(toolkit, parent):
                node.toolkit = toolkit
            known = self._scan(node)
        if path not in self.reached:
            # Each path counts: behind one of them may be a symbolic link that is turned elsewhere.
            self.reached.add(path)
            if node.toolkit and places.inside(node.toolkit, parent):
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
                node.text = scanner.prepare(data)
                node.scan = scanner.scan(*node.text, digest_of(data))
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

    def text(self, node: Node, hints: Iterable[str] = ()) -> tuple[str, bool]:
        """The prepared text of a file; "" when it is not at hand and none of ``hints`` can be in it."""
        if node.text is None:
            if not node.path:
                return "", True
            try:
                data, _ = read(node.path)
            except OSError as error:
                raise UncacheableError(f"{node.label} cannot be read: {error}", "headers") from None
            if digest_of(data) != node.scan.digest:
                raise UncacheableError(f"{node.label} changes while it is read", "headers")
            joined = data.replace(b"\\\n", b"").replace(b"\\\r\n", b"")
            if hints and not any(hint.encode("latin-1") in joined for hint in hints):
                return "", True
            node.text = scanner.prepare(data)
        return node.text

    def _finish(self, root: Node, name: str, paths: bool, quiet: bool) -> Manifest:
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
            shown = exposure.shown(self, root, quiet)
        content = (VERSION, os.path.basename(name), described, self.order, shown)
        result.digest = digest_of(encode(content))
        result.names = tuple([node.label for node in self.nodes[2:] if not node.toolkit])
        self.absent.settle(result, self.toolkits)
        if any(node.path for node in self.nodes):
            for path, known in self.lent.items():
                if known is None:
                    result.absent.append(path)
                else:
                    self._rests_on(path, known)
        return result


def _call(text: str) -> str:
    """A call of a macro, cut off behind the parenthesis that closes it."""
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth and character == ")":
            return text[: index + 1]
    return text


def _beside(kind: str, source_dir: bool, always: bool) -> bool:
    return always or (source_dir and kind.endswith('"'))


def _suffixed(found: Node, included: str) -> bool:
    return found.path.endswith(".stdh") and not included.endswith(".stdh")
