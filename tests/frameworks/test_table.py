"""Protects the table itself: complete, consistent, cheap to import, and the same as what the documentation shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hotstart.compilers import contract, document, relocate
from hotstart.compilers.frameworks import FRAMEWORKS, chosen, describe, environment, framework, owner
from hotstart.compilers.units import pattern_of, unit_of
from hotstart.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.frameworks.cases import CASES
else:
    from cases import CASES

ROOT = Path(__file__).parents[2]

each_row = pytest.mark.parametrize("row", FRAMEWORKS, ids=lambda row: row.name)


def names_of(row: contract.Framework) -> list[str]:
    """Every environment variable that the row sets."""
    return [item.name for item in row.variables] + [item.name for item in row.settings]


def test_every_framework_of_the_project_has_a_row() -> None:
    assert {row.name for row in FRAMEWORKS} == {
        *("torch", "triton", "torch-extensions", "jax", "cupy", "numba", "warp", "tilelang", "cutile", "cute"),
        *("flashinfer", "deepgemm", "helion", "tinygrad", "tvm-ffi", "quadrants", "ninetoothed", "cuda", "comgr"),
        *("miopen", "vllm", "sglang", "nvcc"),
    }


def test_rows_that_claim_a_compile_are_those_compiled_with() -> None:
    claimed = {row.name for row in FRAMEWORKS if row.proof == contract.COMPILED}
    assert claimed == {case.framework for case in CASES}
    assert len(claimed) >= 12


def test_the_versions_of_the_table_are_those_that_are_installed_to_be_tried() -> None:
    tried = {"torch": "2.13.0"}
    for file in ("requirements.txt", "requirements-nodeps.txt"):
        for line in (Path(__file__).parent / file).read_text().splitlines():
            name, pinned, version = line.partition("==")
            if pinned:
                tried[name.partition("[")[0]] = version
    for row in FRAMEWORKS:
        if row.suite == "test-all" and row.tested:
            versions = {text.rpartition(" ")[2] for text in row.tested}
            assert versions == {tried[name] for name in row.distributions if name in tried}


def test_no_two_rows_share_a_name_a_directory_or_a_variable() -> None:
    for values in (
        [row.name for row in FRAMEWORKS],
        [row.directory for row in FRAMEWORKS],
        [name for row in FRAMEWORKS for name in names_of(row)],
    ):
        assert sorted(values) == sorted(set(values))


@each_row
def test_columns_hold_what_the_contract_allows(row: contract.Framework) -> None:
    assert row.proof in contract.PROOFS
    assert row.read in (contract.AT_START, contract.AT_IMPORT, contract.AT_USE)
    assert bool(row.modules) == (row.read == contract.AT_IMPORT)
    assert row.trust
    assert set(row.trust) <= set(contract.TRUST)
    assert {unit.changes for unit in row.units} <= set(contract.CHANGES)
    assert row.variables or row.fixed
    # What is claimed to have been tried names the versions, and says what came of moving it.
    assert bool(row.tested) == (row.proof != contract.DOCUMENTED)
    assert row.proof != contract.COMPILED or row.moves is not None
    for variable in row.variables:
        assert variable.path.split("/")[0] == row.directory
        assert not Path(variable.path).is_absolute()
        assert ".." not in Path(variable.path).parts


@each_row
def test_patterns_are_valid_and_functions_exist(row: contract.Framework) -> None:
    for unit in row.units:
        assert set(pattern_of(unit.pattern).groupindex) <= {"unit"}
    for rewrite in row.rewrites:
        assert rewrite.function in relocate.FUNCTIONS
        assert pattern_of(rewrite.pattern)


@each_row
def test_a_row_cannot_be_changed(row: contract.Framework) -> None:
    with pytest.raises(AttributeError, match="not to be changed"):
        row.name = "another"
    with pytest.raises(AttributeError, match="not to be changed"):
        del row.units


def test_the_environment_is_every_variable_and_setting_of_the_rows_that_are_not_opt_in() -> None:
    got = environment("/cache/root/")
    assert got["TRITON_CACHE_DIR"] == "/cache/root/triton"
    assert got["CACHEDB"] == "/cache/root/tinygrad/cache.db"
    assert got["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] == "none"
    rows = [row for row in FRAMEWORKS if not row.opt_in]
    assert set(got) == {name for row in rows for name in names_of(row)}
    assert "CCACHE_DIR" not in got
    assert "HOME" not in got


def test_the_environment_of_named_rows_is_theirs_alone() -> None:
    assert environment("/r", only=["triton", "cupy"]) == {"TRITON_CACHE_DIR": "/r/triton", "CUPY_CACHE_DIR": "/r/cupy"}
    assert set(environment("/r", only=["nvcc"])) == {"CCACHE_DIR", "SCCACHE_DIR"}
    assert environment("/r", only=[]) == {}


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UsageError, match=r"'trition'; there are torch, triton,"):
        chosen(["trition"])


def test_the_description_is_plain_data() -> None:
    assert json.loads(json.dumps(describe())) == describe()
    (row,) = describe(["triton"])
    assert row["variables"] == [{"name": "TRITON_CACHE_DIR", "path": "triton"}]


@pytest.mark.parametrize(
    ("path", "name", "changes"),
    [
        ("triton/ABC/add.cubin", "ABC", contract.ONCE),
        ("triton/ABC/__grp__add.json", "ABC", contract.ONCE),
        ("triton/ABC/add.autotune.json", "ABC", contract.REPLACED),
        ("triton/ABC/tmp.pid_7_1-2/add.cubin", "", contract.NEVER),
        ("triton/ABC/lock", "", contract.NEVER),
        ("torch/inductor/3y/c3y47.main.so", "3y/c3y47", contract.ONCE),
        ("torch/inductor/3y/c3y47.main.cpp", "3y/c3y47", contract.ONCE),
        ("torch/inductor/3y/c3y47.best_config", "3y/c3y47", contract.REPLACED),
        ("torch/inductor/3y/.12.34.tmp", "", contract.NEVER),
        ("torch/inductor/locks/c3y47.lock", "", contract.NEVER),
        ("torch/inductor/fxgraph/5s/f5s7/n1", "f5s7", contract.ONCE),
        ("torch/inductor/triton/0/KEY/k.cubin", "0/KEY", contract.ONCE),
        ("jax/jit_f-0123-cache", "jit_f-0123", contract.ONCE),
        ("numba/work_1/prog.f-2.py311.1.nbc", "work_1/prog.f-2.py311", contract.REPLACED),
        ("numba/work_1/prog.f-2.py311.nbi", "work_1/prog.f-2.py311", contract.REPLACED),
        ("numba/work_1/prog.f-2.py311.nbi.tmp.1a2b", "", contract.NEVER),
        ("warp/1.19.0/wp___main___1ece8c3_p12_t34/x.o", "", contract.NEVER),
        ("warp/1.19.0/wp___main___1ece8c3/x.cpu.o", "1.19.0/wp___main___1ece8c3", contract.ONCE),
        ("tilelang/0.1/.staging/x/executable.so", "", contract.NEVER),
        ("tinygrad/cache.db-wal", "", contract.DATABASE),
        ("flashinfer/.cache/flashinfer/0.7/90a/flashinfer_jit.log", "", contract.NEVER),
        ("flashinfer/.cache/flashinfer/cubins/x.cubin", "", contract.NEVER),
        ("torch-extensions/answers/lock", "", contract.NEVER),
        ("deepgemm/cache/kernel.x.1/kernel.cubin", "kernel.x.1", contract.ONCE),
        ("comgr/llvmcache-12ab", "llvmcache-12ab", contract.ONCE),
        ("miopen/cache/gfx942.ukdb-wal", "cache/gfx942.ukdb", contract.DATABASE),
    ],
)
def test_files_are_sorted_into_units(path: str, name: str, changes: str) -> None:
    found = owner(path)
    assert found is not None
    sorted_into = unit_of(*found)
    assert sorted_into is not None
    assert (sorted_into[1], sorted_into[0].changes) == (name, changes)


def test_files_that_are_nobodys_belong_to_nothing() -> None:
    assert owner("elsewhere/file") is None
    assert owner("triton") is None
    assert unit_of(framework("jax"), "unheard-of") is None
    assert unit_of(framework("cuda"), "../../.bashrc") is None
    assert unit_of(framework("cuda"), "/etc/passwd") is None


def group(**children: str) -> bytes:
    return json.dumps({"child_paths": {name.replace("_", "."): place for name, place in children.items()}}).encode()


def test_a_list_of_tritons_files_is_rewritten_and_back() -> None:
    row, path = framework("triton"), "KEY/__grp__add.json"
    here = group(add_cubin="/old/triton/KEY/add.cubin", add_ptx="/old/triton/KEY/add.ptx")
    kept = relocate.relocated(row, path, here, "/old/triton", relocate.PLACE)
    assert b"/old" not in kept
    there = relocate.relocated(row, path, kept, relocate.PLACE, "/néw place/triton")
    assert json.loads(there)["child_paths"]["add.cubin"] == "/néw place/triton/KEY/add.cubin"
    assert relocate.relocated(row, path, there, "/néw place/triton", "/old/triton") == here


def test_files_that_hold_no_path_are_left_as_they_are() -> None:
    assert (
        relocate.relocated(framework("triton"), "KEY/add.json", b"/old/triton/KEY", "/old", "/new")
        == b"/old/triton/KEY"
    )
    assert relocate.relocated(framework("jax"), "f-cache", b"\x00/old", "/old", "/new") == b"\x00/old"


@pytest.mark.parametrize(
    "data",
    [
        group(add_cubin="/etc/passwd"),
        group(add_cubin="/old/triton/../../etc/add.cubin"),
        group(add_cubin="/old/tritonic/KEY/add.cubin"),
        group(add_cubin="/old/triton/KEY/other.cubin"),
        group(add_cubin="KEY/add.cubin"),
        b'{"child_paths": {"add.cubin": 7}}',
        b'{"child_paths": ["add.cubin"]}',
        b"[]",
        b"",
        b'{"child_paths"',
        b"\xff",
    ],
)
def test_a_list_that_names_files_elsewhere_or_is_no_list_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        relocate.triton_group(data, "/old/triton", "/new/triton")


def test_the_documentation_is_up_to_date() -> None:
    written = (ROOT / "docs" / "compilers.md").read_text(encoding="utf-8")
    assert written == document.document(), "run: python -m hotstart.compilers.document > docs/compilers.md"


def test_importing_the_table_imports_nothing_else() -> None:
    """It is on the way to the child process of ``hotstart run``."""
    program = (
        "import sys; before = set(sys.modules)\n"
        "from hotstart.compilers.frameworks import environment; environment('/r')\n"
        "print(*sorted(name for name in set(sys.modules) - before if not name.startswith('hotstart')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"__future__"}
