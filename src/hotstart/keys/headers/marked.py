"""Names with a meaning beyond the text: what they stand for is not in any file of the closure.

One list for everybody who has to look out for them. Nothing is imported here, because
a source in which none of them stands is keyed without importing what could look further.
"""

from __future__ import annotations

#: Words of directives that read a file. ``import`` and ``embed`` NVRTC 13 does not know; a release that does must not
#: go unnoticed.
DIRECTIVES = ("include_next", "include", "import", "embed")

#: Names that ask whether a file is there. NVRTC 13 knows the first.
QUESTIONS = ("__has_include", "__has_include_next", "__has_embed")

#: Names of the compiler that put the time of the compile into its output.
CLOCKS = ("__DATE__", "__TIME__", "__TIMESTAMP__")

#: Names that give the path of the file they stand in. ``assert`` is NVRTC's own and says where it failed.
PLACES = ("__FILE__", "assert")

#: Names that can give the path of another file: that of whoever calls, or the main one.
CALLERS = ("__builtin_FILE", "__builtin_source_location", "source_location", "__BASE_FILE__")

#: How pasting is spelled: with it any of the names can be put together from pieces.
PASTES = ("##", "%:", "??=")

#: Without any of these in it, a source includes nothing and shows neither path nor time.
SIGNS = (*DIRECTIVES[1:], *CLOCKS, *PLACES, *CALLERS[::3], "source_location", *PASTES, "??/")
