"""``proof``: the runs of one program with one framework, made once however many tests look at them."""

from __future__ import annotations

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.frameworks.cases import CASES, Case
    from tests.frameworks.laboratory import Proof, lacking
else:
    from cases import CASES, Case
    from laboratory import Proof, lacking


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``case`` is each case; with ``proof`` only those that can run here, so that one missing is one test skipped."""
    if "case" in metafunc.fixturenames:
        cases = [case for case in CASES if "proof" not in metafunc.fixturenames or not lacking(case)]
        metafunc.parametrize("case", cases, ids=[case.program.removesuffix(".py") for case in cases], scope="session")


@pytest.fixture(scope="session")
def _proofs() -> dict[str, Proof]:
    return {}


@pytest.fixture
def proof(case: Case, _proofs: dict[str, Proof], tmp_path_factory: pytest.TempPathFactory) -> Proof:
    if case.program not in _proofs:
        _proofs[case.program] = Proof(tmp_path_factory.mktemp(case.framework), case)
    return _proofs[case.program]
