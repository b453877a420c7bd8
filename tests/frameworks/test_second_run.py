"""Protects the claim of every row that says so: redirected as the table says, a second run compiles nothing.

Real compilers, no GPU. Where one cannot start without asking for a GPU, the question
is answered and the compile is its own. What compiles inside the process is counted
there, compiler processes are counted from outside, and the cache directory is
compared file by file.
"""

from __future__ import annotations

import pytest

from hotstart.compilers.contract import DATABASE, NEVER
from hotstart.compilers.frameworks import owner
from hotstart.compilers.units import unit_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.frameworks.cases import Case
    from tests.frameworks.laboratory import Proof, files, lacking
else:
    from laboratory import files, lacking


def changes_of(path: str) -> str:
    """How the table says that the file at ``path`` under the root changes; "unknown" if it does not say."""
    found = owner(path)
    kind = unit_of(*found) if found is not None else None
    return "unknown" if kind is None else kind[0].changes


def test_the_framework_is_here_to_be_tried(case: Case) -> None:
    """Skips in place of all the tests below, saying what to install."""
    if lacking(case):
        pytest.skip(lacking(case))


def test_the_first_run_compiles_and_the_count_sees_it(proof: Proof) -> None:
    """Without this the next test would pass with a count that counts nothing."""
    assert proof.first.compiles > 0
    assert proof.first.reused == 0
    assert proof.written or proof.case.row.fixed


def test_a_second_run_compiles_nothing(proof: Proof) -> None:
    assert proof.first.compiles > 0
    assert proof.second.compiled == 0
    assert proof.second.processes == ()
    if proof.first.compiled:
        assert proof.second.reused > 0


def test_a_second_run_changes_no_file_but_databases_and_locks(proof: Proof) -> None:
    assert proof.second
    before, after = proof.written, proof.after_second
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert [path for path in sorted(changed) if changes_of(path) not in (DATABASE, NEVER)] == []


def test_nothing_is_written_outside_the_root(proof: Proof) -> None:
    assert proof.strays == []


def test_the_units_of_the_table_know_every_file(proof: Proof) -> None:
    assert proof.first
    assert [path for path in sorted(proof.written) if changes_of(path) == "unknown"] == []


def test_a_moved_root_is_what_the_table_says(proof: Proof) -> None:
    assert (proof.moved.compiles == 0) is proof.case.row.moves


def test_a_moved_program_is_what_the_table_says(proof: Proof) -> None:
    assert (proof.followed.compiles == 0) is proof.case.row.follows


def test_without_our_variables_it_writes_where_the_table_says(proof: Proof, case: Case) -> None:
    """So that users are told the truth about where their cache was before."""
    world = proof.unredirected
    if case.beside:
        assert list(world.work.glob(case.beside))
        return
    left = [world.home / path for path in files(world.home)] + [
        world.temporary / path for path in files(world.temporary)
    ]
    if case.row.default == "off":
        assert left == []
        return
    for default in case.row.default.split(", "):
        place = world.expand(default)
        if any(path.is_relative_to(place) for path in left):
            return
    raise AssertionError(f"nothing in {case.row.default}, but in {left[:5]}")
