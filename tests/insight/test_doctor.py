"""``doctor``: every check with its real condition staged, and silent without it.

Mounts are made in a namespace of their own, by ``unshare``; what cannot be staged there
(a server's clock, a network's file system) is given to the function that judges it.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hotstart
from hotstart.insight import checks_disk, checks_program
from hotstart.insight.doctor import ERROR, NOTE, OK, WARNING, Finding, Patient, checks, examine
from hotstart.launch import records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Patient:
    """Healthy: a private home with a store, an environment with nothing in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir(mode=0o700)
    with hotstart.Cache(tmp_path / "home" / "store") as cache:
        for n in range(3):
            cache.put(hotstart.Key("test", n=n), {"x": b"1"})
    environ = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path / "elsewhere")}
    return Patient(str(tmp_path / "home"), budget=1 << 20, environ=environ, python=_python(tmp_path, torch="2.13.0"))


def _python(place: Path, **packages: str) -> str:
    """A virtual environment, as far as anything reads of it."""
    site = place / "env" / "lib" / "python3.12" / "site-packages"
    for name, version in packages.items():
        (site / f"{name}-{version}.dist-info").mkdir(parents=True)
    (place / "env" / "pyvenv.cfg").write_text("version = 3.12.1\n")
    (place / "env" / "bin").mkdir(exist_ok=True)
    (place / "env" / "bin" / "python").write_text("")
    (place / "env" / "bin" / "python").chmod(0o755)
    return str(place / "env" / "bin" / "python")


def found(patient: Patient, check: str) -> list[Finding]:
    return [finding for finding in examine(patient, [check]) if finding.level != OK]


def only(patient: Patient, check: str) -> Finding:
    (finding,) = found(patient, check)
    assert finding.check == check
    return finding


#: Told of the machine and not of the patient: they may have something to say where the tests run.
OF_THE_MACHINE = {"file system", "space", "inodes"}


def test_a_healthy_patient_is_fine(patient: Patient) -> None:
    assert [
        finding for finding in examine(patient) if finding.level != OK and finding.check not in OF_THE_MACHINE
    ] == []


def test_every_finding_but_a_note_has_a_remedy(patient: Patient, tmp_path: Path) -> None:
    """Asked of a patient with as many ailments as one can have at once."""
    (tmp_path / "home").chmod(0o777)
    (tmp_path / "home" / "store" / "format").write_text("hotstart store 9\n")
    patient.environ = {"TMPDIR": str(tmp_path), "HOTSTART_DISABLE": "1", "TRITON_CACHE_DIR": "/x", "PATH": "/bin"}
    ailing = [finding for finding in examine(patient) if finding.level in (ERROR, WARNING)]
    assert len(ailing) >= 5
    assert [finding for finding in ailing if not finding.remedy] == []


def test_a_check_that_cannot_be_done_is_a_finding(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Patient) -> list[Finding]:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(checks_disk, "space", broken)
    finding = only(patient, "space")
    assert (finding.level, "no such thing" in finding.text) == (WARNING, True)


def test_nothing_is_left_behind(patient: Patient, tmp_path: Path) -> None:
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    examine(patient)
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


# -- the place ------------------------------------------------------------------------


def test_a_home_that_can_be_made_is_fine(patient: Patient, tmp_path: Path) -> None:
    patient.home = str(tmp_path / "not" / "yet")
    assert [finding for finding in examine(patient) if finding.level == ERROR and finding.check != "space"] == []


def test_a_home_that_cannot_be_made(patient: Patient, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    patient.home = str(tmp_path / "file" / "home")
    finding = only(patient, "home")
    assert finding.level == ERROR
    assert "cannot be made" in finding.text


def test_a_home_that_is_a_file(patient: Patient, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    patient.home = str(tmp_path / "file")
    assert "not a directory" in only(patient, "home").text


def test_a_home_among_temporary_files(patient: Patient, tmp_path: Path) -> None:
    patient.environ = {"TMPDIR": str(tmp_path)}
    finding = only(patient, "home")
    assert finding.level == WARNING
    assert "emptied" in finding.text


def test_directories_that_others_can_write(patient: Patient) -> None:
    Path(patient.root).mkdir()
    for place, level in ((patient.home, WARNING), (patient.store, ERROR), (patient.root, ERROR)):
        Path(place).chmod(0o770)
        finding = only(patient, "permissions")
        assert finding.level == level
        assert f"{place} can be written by others" in finding.text
        subprocess.run(finding.remedy, shell=True, check=True)
        assert found(patient, "permissions") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory away needs root")
def test_a_home_of_somebody_else(patient: Patient) -> None:
    os.chown(patient.home, 12345, -1)
    assert "belongs to user 12345" in only(patient, "permissions").text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere; needs an ordinary user")
def test_a_home_that_cannot_be_written(patient: Patient) -> None:
    Path(patient.home).chmod(0o500)
    assert "cannot be written" in only(patient, "permissions").text


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs /dev/shm, a file system in memory")
def test_a_home_in_memory(patient: Patient) -> None:
    patient.home = "/dev/shm/hotstart"
    finding = found(patient, "file system")[0]
    assert finding.level == WARNING
    assert "gone after a reboot" in finding.text


@pytest.mark.parametrize(
    ("type", "options", "level", "said"),
    [
        ("nfs4", "rw", WARNING, "crosses the network"),
        ("fuse.sshfs", "rw", WARNING, "crosses the network"),
        ("overlay", "rw", NOTE, "container"),
        ("ext4", "ro", ERROR, "read-only"),
        ("ext4", "rw,noatime", NOTE, "hits are not counted"),
        ("fuseblk", "rw,relatime", "", ""),
        ("ext4", "rw,relatime", "", ""),
    ],
)
def test_file_systems_by_the_kernels_table(
    patient: Patient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: str, options: str, level: str, said: str
) -> None:
    """The table is the kernel's in form; no machine has all of these."""
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 0:5 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
        f"23 22 0:6 / {patient.home} {options} shared:2 - {type} server:/export rw\n"
        f"24 22 0:7 / {patient.home}-other rw - tmpfs tmpfs rw\n"
    )
    monkeypatch.setattr(checks_disk, "mount_of", functools.partial(checks_disk.mount_of, table=str(table)))
    assert [(finding.level, said in finding.text) for finding in found(patient, "file system")] == (
        [(level, True)] if level else []
    )


def test_mounts_with_odd_names_are_understood(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 0:5 / / rw - ext4 x rw\n"
        "23 22 0:6 / /mnt/my\\040disk rw,noexec opt:1 opt:2 - xfs x rw\n"
        "24 22 0:7 / /mnt/my\\040disk rw - tmpfs x rw\n"
        "not a line\n"
    )
    mount = checks_disk.mount_of("/mnt/my disk/deep", str(table))
    assert mount is not None
    assert (mount.place, mount.type) == ("/mnt/my disk", "tmpfs")
    assert checks_disk.mount_of("/mnt", str(tmp_path / "none")) is None


@functools.cache
def _can_mount() -> bool:
    try:
        return subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


needs_mounts = pytest.mark.skipif(not _can_mount(), reason="needs unshare(1) and user namespaces, or root")


def mounted(tmp_path: Path, options: str, before: str = "true") -> dict[str, dict[str, Any]]:
    """``hotstart doctor`` with its home on a file system mounted so; findings by check."""
    place = tmp_path / "mount"
    place.mkdir()
    script = (
        f'mount -t tmpfs -o "{options}" tmpfs "{place}" && cd "{place}" && {before}; '
        f'HOTSTART_HOME="{place}/home" exec "{sys.executable}" -m hotstart doctor --json'
    )
    done = subprocess.run(["unshare", "-Urm", "sh", "-c", script], capture_output=True, text=True, check=False)
    return {finding["check"]: finding for finding in json.loads(done.stdout)["findings"] if finding["level"] != OK}


@needs_mounts
def test_a_file_system_that_forbids_execution(tmp_path: Path) -> None:
    finding = mounted(tmp_path, "noexec")["executable"]
    assert finding["level"] == ERROR
    assert "noexec" in finding["text"]


@needs_mounts
def test_a_full_file_system(tmp_path: Path) -> None:
    findings = mounted(tmp_path, "size=2m", "dd if=/dev/zero of=ballast 2>/dev/null")
    assert findings["space"]["level"] in (ERROR, WARNING)
    assert findings["file system"]["level"] == WARNING


@needs_mounts
def test_a_file_system_without_inodes(tmp_path: Path) -> None:
    finding = mounted(tmp_path, "nr_inodes=40")["inodes"]
    assert finding["level"] == ERROR
    assert "no inodes" in finding["text"]


@needs_mounts
def test_a_read_only_file_system(tmp_path: Path) -> None:
    findings = mounted(tmp_path, "ro")
    assert findings["file system"]["level"] == ERROR or findings["home"]["level"] == ERROR


@needs_mounts
def test_a_budget_larger_than_the_disk(tmp_path: Path) -> None:
    finding = mounted(tmp_path, "size=2g")["space"]
    assert finding["level"] == WARNING
    assert "budget" in finding["text"]


@pytest.mark.parametrize(("seconds", "said"), [(600.0, "10 min ahead of"), (-90.0, "1 min 30 s behind"), (0.5, "")])
def test_a_clock_that_is_off(seconds: float, said: str) -> None:
    """What a server's clock shows; the times of a local disk cannot be off."""
    findings = list(checks_disk.skew(seconds, "/home"))
    assert [said in finding.text for finding in findings] == ([True] if said else [])


# -- the store -------------------------------------------------------------------------


def test_a_store_of_a_newer_version(patient: Patient) -> None:
    Path(patient.store, "format").write_text("hotstart store 9\n")
    finding = only(patient, "store")
    assert finding.level == ERROR
    assert "newer hotstart" in finding.text
    assert "upgrade" in finding.remedy


def test_a_store_that_is_a_file(patient: Patient, tmp_path: Path) -> None:
    Path(patient.store).rename(tmp_path / "away")
    Path(patient.store).write_text("")
    assert "is a file" in only(patient, "store").text


def test_a_store_that_others_can_write_is_not_trusted(patient: Patient) -> None:
    Path(patient.store).chmod(0o777)
    finding = only(patient, "store")
    assert finding.level == ERROR
    assert "chmod 700" in finding.remedy


def test_layers_that_are_not_there_or_no_store(patient: Patient, tmp_path: Path) -> None:
    patient.under = [patient.store, str(tmp_path / "none"), str(tmp_path / "home")]
    assert [finding.text.partition(str(tmp_path))[2] for finding in found(patient, "layers")] == [
        "/none: there is no such layer",
        "/home is not a store",
    ]


def test_a_layer_that_others_could_write(patient: Patient) -> None:
    patient.under = [patient.store]
    Path(patient.store).chmod(0o775)
    finding = only(patient, "layers")
    assert finding.level == ERROR
    subprocess.run(finding.remedy.partition(";")[0], shell=True, check=True)
    assert found(patient, "layers") == []


#: What another user finds: asked as nobody in particular, which takes root to become.
AS_ANOTHER = """
import os, sys
os.setgid(54321), os.setuid(54321)
from hotstart.insight.doctor import Patient, examine
for finding in examine(Patient(sys.argv[1], under=[sys.argv[2]]), ["layers"]):
    print(finding.level, finding.text)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_layer_that_another_user_cannot_read(patient: Patient, swift_path: Path) -> None:
    layer = swift_path / "layer"
    with hotstart.Cache(layer) as cache:
        cache.put(hotstart.Key("test"), {"x": b"1"})
    for place in (swift_path, layer):
        place.chmod(0o755)
    # The child imports before it gives up its rights: the package may lie where only root may look.
    code = "import hotstart.insight.doctor, hotstart.insight.checks_disk, hotstart.insight.checks_program\n" + (
        "import hotstart.insight.checks_store, hotstart.store.local\n" + AS_ANOTHER
    )
    command = [sys.executable, "-c", code, patient.home, str(layer)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout
    assert said.startswith("error the layer ")
    subprocess.run(["chmod", "-R", "a+rX", layer], check=True)
    assert subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout.strip() == "ok"


def old(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_lock_of_a_dead_build(patient: Patient) -> None:
    lock = Path(patient.root, "torch-extensions", "my_op", "lock")
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    assert found(patient, "locks") == []  # somebody may be building right now
    old(lock, 2 * 3600)
    finding = only(patient, "locks")
    assert finding.level == ERROR
    assert "for ever" in finding.text
    subprocess.run(finding.remedy, shell=True, check=True)
    assert found(patient, "locks") == []


def test_locks_of_killed_compiles_but_not_those_that_are_held(patient: Patient) -> None:
    place = Path(patient.store, "flights")
    for name in ("dead", "held"):
        (place / name).write_text("")
        old(place / name, 2 * 3600)
    with (place / "held").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        finding = only(patient, "locks")
    assert finding.level == NOTE
    assert finding.text.startswith("1 lock file ")


def test_a_store_that_a_stopped_process_has_locked(patient: Patient) -> None:
    with Path(patient.store, "ledger").open() as ledger:
        fcntl.flock(ledger, fcntl.LOCK_EX)
        assert "locked for two seconds" in only(patient, "locks").text
    assert found(patient, "locks") == []


def test_damage_that_was_set_aside(patient: Patient) -> None:
    entry = next(Path(patient.store, "entries").glob("*/*"))
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    with hotstart.Cache(patient.store, memory=0) as cache:
        cache.verify()
    assert "1 damaged file set aside" in only(patient, "quarantine").text


def test_entries_from_the_future(patient: Patient) -> None:
    entry = next(Path(patient.store, "entries").glob("*/*"))
    old(entry, -86400)
    finding = only(patient, "future")
    assert "1 entry was last used in the future" in finding.text
    subprocess.run(finding.remedy.partition("then: ")[2], shell=True, check=True)
    assert found(patient, "future") == []


def test_records_that_cannot_be_read(patient: Patient) -> None:
    record: dict[str, Any] = {"name": "x"}
    records.write(patient.home, record)
    Path(records.directory(patient.home), record["id"]).write_text("?")
    assert "1 record of runs cannot be read and is passed over" in only(patient, "records").text


# -- the program -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value", "level"),
    [
        ("HOTSTART_DISABLE", "1", ERROR),
        ("HOTSTART_READ_ONLY", "true", NOTE),
        ("TRITON_ALWAYS_COMPILE", "1", WARNING),
        ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1", WARNING),
        ("JAX_ENABLE_COMPILATION_CACHE", "False", WARNING),
        ("TRITON_ALWAYS_COMPILE", "0", ""),
        ("JAX_ENABLE_COMPILATION_CACHE", "true", ""),
    ],
)
def test_caches_that_are_turned_off(patient: Patient, variable: str, value: str, level: str) -> None:
    patient.environ = {variable: value}
    assert [finding.level for finding in found(patient, "switches")] == ([level] if level else [])


def test_directories_that_were_chosen_already(patient: Patient) -> None:
    patient.environ = {"TRITON_CACHE_DIR": "/scratch/triton", "JAX_COMPILATION_CACHE_DIR": f"{patient.root}/jax"}
    finding = only(patient, "variables")
    assert "TRITON_CACHE_DIR is set to '/scratch/triton'" in finding.text
    assert "--force" in finding.remedy


@pytest.mark.parametrize(
    ("version", "level"),
    [("2.13.0", ""), ("2.13.0+cpu", ""), ("2.13.1", NOTE), ("2.14.0", WARNING), ("3.0.0a1", WARNING)],
)
def test_versions_that_were_not_tested(patient: Patient, tmp_path: Path, version: str, level: str) -> None:
    patient.python = _python(tmp_path / "other", torch=version)
    levels = {finding.level for finding in found(patient, "versions") if finding.text.startswith("torch ")}
    assert levels == ({level} if level else set())


PROGRAMS = [
    ("import hotstart\nhotstart.init()\nimport jax\n", []),
    ("import jax\nimport hotstart\nhotstart.init()\n", ["jax"]),
    ("import torch\nfrom hotstart import init as start\nstart()\n", []),
    ("import torch._inductor.config\nfrom hotstart import init\ninit()\n", ["torch._inductor.config"]),
    ("from jax import numpy\nimport hotstart as h\nh.init()\n", ["jax.numpy"]),
    ("import jax\n", []),
    ("import jaxtyping\nimport hotstart\nhotstart.init()\n", []),
]


@pytest.mark.parametrize(("text", "modules"), PROGRAMS)
def test_frameworks_imported_before_init(patient: Patient, tmp_path: Path, text: str, modules: list[str]) -> None:
    script = tmp_path / "program.py"
    script.write_text(text)
    patient.script = str(script)
    assert [finding.text.split(" imports ")[1].split(" ")[0] for finding in found(patient, "imports")] == modules


@pytest.mark.parametrize("text", ["def", "\0"])
def test_a_program_that_is_none(patient: Patient, tmp_path: Path, text: str) -> None:
    (tmp_path / "program.py").write_text(text)
    patient.script = str(tmp_path / "program.py")
    assert "is not Python" in only(patient, "imports").text
    patient.script = str(tmp_path / "none.py")
    assert only(patient, "imports").level == ERROR


def test_modules_of_a_running_process() -> None:
    assert ("jax", "jax") in checks_program.imported_too_early({"jax": None, "torch": None})
    assert checks_program.imported_too_early({"torch": None, "jaxtyping": None}) == []


def test_every_check_is_listed_once() -> None:
    named: dict[str, Callable[..., Any]] = dict(checks())
    assert len({check.__name__ for check in named.values()}) == len(named)
