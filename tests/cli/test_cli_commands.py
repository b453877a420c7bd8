"""The commands on a real store: what they print, what they change, and what they leave alone."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hotstart
from hotstart.cli import main as cli
from hotstart.cli.env import written
from hotstart.launch import live, records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def filled(home: Path) -> Path:
    """Five entries of three frameworks, one large."""
    with hotstart.Cache(home / "store") as cache:
        for n in range(3):
            key = hotstart.Key("nvrtc", name=f"kernel{n}.cu", arch=f"sm_{n}")
            assert cache.put(key, {"cubin": bytes(1000)}, cost=float(n + 1))
        assert cache.put(hotstart.Key("triton", name="add"), {"cubin": os.urandom(1 << 20)}, cost=0.5)
        assert cache.put(hotstart.Key("capture", name="torch", group="g"), {"files": bytes(100)}, cost=9.0)
    return home


def a_run(home: Path, **more: object) -> dict[str, Any]:
    record: dict[str, Any] = {
        "id": records.new_id(), "name": "train", "command": ["python", "train.py"], "started": time.time() - 1,
        "seconds": 1.0, "status": 0,
        "frameworks": {
            "torch": {"hits": 8, "new": 2, "restored": 3, "bytes": 10, "seconds_saved": 90.0, "rebuilt": 0},
        },
        "units": [{"framework": "torch", "unit": "graph", "name": "abc", "event": "new", "cost": 2.0}],
        "context": {"version": 1, "program": "train.py", "env": {}},
        **more,
    }  # fmt: skip
    assert records.write(str(home), record)
    return record


#: Those that need nothing to be said; sharing is in a file of its own.
NEEDY = {"run", "warm", "why", "clear", "push", "pull", "trust", "remote"}
COMMANDS = [name for name in cli.COMMANDS if name not in NEEDY]


@pytest.mark.parametrize("command", COMMANDS)
def test_before_anything_was_stored_every_command_answers(call: Call, home: Path, command: str) -> None:
    status, out, err = call(command)
    assert (status, err) == (0, "")
    assert out
    status, out, err = call(command, "--json")
    json.loads(out)
    assert (status, err) == (0, "")


@pytest.mark.parametrize("command", ["stats", "ls", "gc", "verify", "config", "doctor", "why"])
def test_looking_creates_nothing(call: Call, home: Path, command: str) -> None:
    call(command)
    assert not home.exists()


@pytest.mark.parametrize("command", [*COMMANDS, "why"])
def test_json_is_json_with_a_full_store_too(call: Call, filled: Path, command: str) -> None:
    a_run(filled)
    status, out, err = call(command, "--json")
    json.loads(out)
    assert (status, err) == (0, "")


def test_stats_by_framework(call: Call, filled: Path) -> None:
    a_run(filled)
    a_run(filled)
    _, out, _ = call("stats", "--json")
    numbers = json.loads(out)
    torch = numbers["frameworks"]["torch"]
    assert (torch["hits"], torch["misses"], torch["restored"], torch["entries"]) == (16, 4, 6, 1)
    assert torch["seconds_saved"] == pytest.approx(180)
    assert numbers["frameworks"]["nvrtc"]["entries"] == 3
    assert numbers["frameworks"]["triton"]["bytes"] > 1 << 20
    assert numbers["runs"] == 2
    assert numbers["store"]["entries"] == 5
    assert numbers["store"]["bytes"] == sum(row["bytes"] for row in numbers["frameworks"].values())
    _, out, _ = call("stats")
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert lines["torch"].split()[1:4] == ["16", "4", "80%"]
    assert "2 runs since" in out


def test_bytes_that_entries_share_count_once(call: Call, home: Path) -> None:
    shared = os.urandom(1 << 20)
    with hotstart.Cache(home / "store") as cache:
        for n in range(3):
            assert cache.put(hotstart.Key("triton", n=n), {"so": shared})
    _, out, _ = call("stats", "--json")
    numbers = json.loads(out)
    assert numbers["frameworks"]["triton"]["bytes"] == numbers["store"]["bytes"] < 2 << 20


def test_stats_for_prometheus_follow_its_grammar(call: Call, filled: Path) -> None:
    a_run(filled, frameworks={'odd"\\\nname': {"hits": 1, "new": 1, "seconds_saved": 0.25}})
    status, out, _ = call("stats", "--prometheus")
    assert status == 0
    assert out.endswith("\n")
    typed: dict[str, str] = {}
    for line in out.splitlines():
        words = line.split(" ")
        if line.startswith("# TYPE"):
            assert words[2] not in typed
            typed[words[2]] = words[3]
        elif not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            assert typed[name] == ("counter" if name.endswith("_total") else "gauge")
            float(words[-1])
    assert r'hotstart_hits_total{framework="odd\"\\\nname"} 1' in out
    assert 'hotstart_entries{framework="nvrtc"} 3' in out


def test_ls_lists_what_was_used_last_first(call: Call, filled: Path) -> None:
    with hotstart.Cache(filled / "store", memory=0) as cache:
        time.sleep(0.01)
        assert cache.get(hotstart.Key("nvrtc", name="kernel1.cu", arch="sm_1")) is not None
    _, out, _ = call("ls")
    lines = out.splitlines()
    assert lines[0].split() == ["framework", "size", "cost", "used", "name"]
    assert lines[1].endswith("kernel1.cu")
    assert "5 entries" in lines[-1]


def test_ls_of_one_framework_sorted_and_limited(call: Call, filled: Path) -> None:
    _, out, _ = call("ls", "nvrtc", "--sort", "cost", "-n", "2")
    assert [line.split()[-1] for line in out.splitlines()[1:3]] == ["kernel2.cu", "kernel1.cu"]
    assert "2 of 3 entries" in out
    _, out, _ = call("ls", "jax")
    assert out == "There are no entries of jax.\n"


def test_ls_long_says_who_made_it(call: Call, filled: Path) -> None:
    _, out, _ = call("ls", "triton", "--long")
    assert f"hotstart {hotstart.__version__}" in out
    assert hotstart.Key("triton", name="add").digest[:16] in out
    _, out, _ = call("ls", "triton", "--long", "--json")
    (row,) = json.loads(out)
    assert row["provenance"]["producer"] == f"hotstart {hotstart.__version__}"
    assert row["bytes"] > 1 << 20


def test_a_name_cannot_move_the_cursor(call: Call, home: Path) -> None:
    with hotstart.Cache(home / "store") as cache:
        cache.put(hotstart.Key("nvrtc", name="\x1b[2Jevil\r\n"), {"x": b"1"})
    _, out, _ = call("ls")
    assert "\x1b" not in out
    assert "\r" not in out


def test_gc_says_what_it_would_do_and_then_does_it(call: Call, filled: Path) -> None:
    _, out, _ = call("gc", "--max-size", "100KiB", "--dry-run")
    assert out.startswith("would remove 1 entry, 1.0 MiB")
    with hotstart.Cache(filled / "store") as cache:
        assert len(cache) == 5
    _, out, _ = call("gc", "--max-size", "100KiB", "--json")
    done = json.loads(out)
    assert (done["removed"]["entries"], done["left"]["entries"]) == (1, 4)
    _, out, _ = call("gc", "--older-than", "1h")
    assert out.startswith("removed 0 entries, 0 B\n")
    _, out, _ = call("gc", "--older-than", "0")
    assert out.startswith("removed 4 entries")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--max-size", "5GB"], "is not a size"),
        (["--max-size", "-1"], "is not a size"),
        (["--older-than", "soon"], "is not a time"),
        (["--older-than", "3y"], "is not a time"),
        (["--older-than", "nan"], "is not a time"),
        (["extra"], "unrecognized arguments: extra"),
    ],
)
def test_gc_refuses_what_it_does_not_understand(call: Call, filled: Path, arguments: list[str], said: str) -> None:
    status, out, err = call("gc", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_verify_finds_damage_and_fails(call: Call, filled: Path) -> None:
    status, out, _ = call("verify")
    assert (status, out) == (0, "5 entries sound\n")
    key = hotstart.Key("nvrtc", name="kernel0.cu", arch="sm_0")
    path = filled / "store" / "entries" / key.digest[:2] / key.digest[2:]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    status, out, _ = call("verify", "--json")
    nothing = {"ok": 0, "unknown": 0, "repaired": [], "damaged": []}
    assert (status, json.loads(out)) == (1, {"ok": 4, "damaged": [key.digest], "directories": nothing})
    assert call("verify")[:2] == (0, "4 entries sound\n")


TRITON = """
import os, pathlib
place = pathlib.Path(os.environ["TRITON_CACHE_DIR"], "KEY")
place.mkdir(parents=True, exist_ok=True)
(place / "k.ptx").write_text(".version 8.0")
"""


def test_verify_repairs_the_directories(call: Call, home: Path) -> None:
    command = [sys.executable, "-m", "hotstart", "run", "-q", "--only", "triton", sys.executable, "-c", TRITON]
    subprocess.run(command, check=True)
    path = home / "frameworks" / "triton" / "KEY" / "k.ptx"
    assert path.exists()
    _, out, _ = call("verify", "--json")
    assert json.loads(out)["directories"]["ok"] == 1
    path.write_text(".version 9.0")
    status, out, _ = call("verify", "--no-repair")
    assert (status, "1 file damaged and not repaired:\n  triton/KEY/k.ptx" in out) == (1, True)
    status, out, _ = call("verify")
    assert (status, "1 file repaired from the store:" in out) == (1, True)
    assert path.read_text() == ".version 8.0"
    assert call("verify")[0] == 0


def test_clear_wants_to_be_told(call: Call, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    status, _, err = call("clear")
    assert (status, "say --yes" in err) == (2, True)
    (filled / "frameworks" / "jax").mkdir(parents=True)
    (filled / "frameworks" / "jax" / "x-cache").write_text("1")
    a_run(filled)
    status, out, _ = call("clear", "--yes")
    assert (status, out.startswith("removed 5 entries, 1.0 MiB")) == (0, True)
    assert not (filled / "frameworks" / "jax").exists()
    assert call("ls")[1] == "There are no entries.\n"
    assert records.last(str(filled)) != []
    call("clear", "--yes", "--records")
    assert records.last(str(filled)) == []


def on_terminal(arguments: list[str], answer: str, **environ: str) -> tuple[int, str]:
    """A command on a pseudo-terminal: its exit status and all that was shown."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", **environ}
    command = [sys.executable, "-m", "hotstart", *arguments]
    child = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True)
    os.close(slave)
    os.write(master, answer.encode())
    shown = b""
    while select.select([master], [], [], 60)[0]:
        try:
            piece = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(master)
    return child.wait(), shown.decode()


def test_clear_asks_on_a_terminal(filled: Path) -> None:
    status, shown = on_terminal(["clear"], "n\n")
    assert (status, "Remove 5 entries" in shown, "Nothing was removed" in shown) == (1, True, True)
    status, shown = on_terminal(["clear"], "y\n")
    assert (status, "removed 5 entries" in shown) == (0, True)


def test_clear_says_that_somebody_is_running(filled: Path) -> None:
    held = live.begin(str(filled), "somebody")
    try:
        assert "1 program under hotstart run may lose" in on_terminal(["clear"], "n\n")[1]
    finally:
        live.end(str(filled), "somebody", held)


def test_colours_are_for_terminals_alone(call: Call, filled: Path) -> None:
    assert "\x1b[1m" in on_terminal(["stats"], "")[1]
    assert "\x1b" not in on_terminal(["stats"], "", NO_COLOR="1")[1]
    assert "\x1b" not in on_terminal(["stats"], "", TERM="dumb")[1]
    assert "\x1b" not in call("stats")[1]


def test_config_says_where_each_value_came_from(call: Call, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("hotstart.toml").write_text('policy = "lru"\n')
    monkeypatch.setenv("HOTSTART_MAX_SIZE", "3GiB")
    _, out, _ = call("config", "--json")
    shown = json.loads(out)
    assert shown["max_size"] == {"value": "3GiB", "from": "HOTSTART_MAX_SIZE"}
    assert shown["policy"]["from"].endswith("/work/hotstart.toml")
    assert shown["memory"]["from"] == "default"
    assert shown["home"]["value"] == str(home)
    assert call("config", "max_size")[1] == "3GiB\n"
    status, _, err = call("config", "colour")
    assert (status, "no setting is called 'colour'" in err) == (2, True)


def test_a_setting_that_makes_no_sense_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTSTART_READ_ONLY", "perhaps")
    for command in ("config", "stats", "ls", "env"):
        status, _, err = call(command)
        assert (status, err.count("\n")) == (2, 1)
        assert "HOTSTART_READ_ONLY" in err


def test_turned_off_there_is_nothing_to_look_at(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTSTART_DISABLE", "1")
    status, _, err = call("ls")
    assert (status, err) == (2, "hotstart: hotstart is turned off by HOTSTART_DISABLE\n")
    assert call("env") == (0, "", "")


def test_a_store_of_a_newer_version_is_one_line(call: Call, filled: Path) -> None:
    (filled / "store" / "format").write_text("hotstart store 9\n")
    for command in ("ls", "stats"):
        status, _, err = call(command)
        assert status == 0
        assert err.count("\n") <= 1
    assert call("doctor")[0] == 1


def test_env_is_what_a_shell_reads(call: Call, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/bash")
    _, out, _ = call("env", "--only", "triton")
    assert out == f"export TRITON_CACHE_DIR='{home}/frameworks/triton'\n"
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    assert call("env", "--only", "triton")[1] == ""
    assert "frameworks/triton" in call("env", "--only", "triton", "--force")[1]
    status, _, err = call("env", "--only", "trition")
    assert (status, "no framework is called" in err) == (2, True)


@pytest.mark.parametrize("value", ["plain", "it's", 'a "b" $c `d` \\e', "line\nbreak", "ünï"])
def test_env_survives_every_value(value: str) -> None:
    script = written("sh", "HOTSTART_TEST_VALUE", value) + '\nprintf "%s" "$HOTSTART_TEST_VALUE"'
    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout == value


def test_why_after_a_run(call: Call, filled: Path) -> None:
    a_run(filled)
    a_run(filled, context={"version": 1, "program": "train.py", "env": {"OMP_NUM_THREADS": "1"}}, units=[
        {"framework": "torch", "unit": "graph", "name": "xyz", "event": "new", "cost": 2.0},
    ])  # fmt: skip
    status, out, err = call("why")
    assert (status, err) == (0, "")
    assert "torch: 8 hits, 3 restored, 2 compiled\n  OMP_NUM_THREADS unset → 1\n    graph xyz  2.0 s\n" in out
    _, out, _ = call("why", "--json")
    assert json.loads(out)["frameworks"][0]["causes"][0]["subject"] == "OMP_NUM_THREADS"


def test_why_of_a_key_and_of_a_run(call: Call, filled: Path) -> None:
    first = a_run(filled)
    digest = hotstart.Key("triton", name="add").digest
    assert "never seen" in call("why", digest[:12])[1]
    assert "torch: 8 hits" in call("why", first["id"])[1]
    status, _, err = call("why", "ffffffff")
    assert (status, "no run and no entry begins with 'ffffffff'" in err) == (1, True)


def test_why_points_back_to_the_last_run_that_compiled(call: Call, home: Path) -> None:
    first = a_run(home)
    second = a_run(home, frameworks={"torch": {"hits": 10, "new": 0}}, units=[])
    _, out, _ = call("why")
    assert "torch: 10 hits, 0 compiled" in out
    assert out.splitlines()[-1].endswith(f"hotstart why {first['id']}")
    common = first["id"][:6]
    status, _, err = call("why", common)
    assert (status, err) == (1, f"hotstart: why: 2 runs begin with {common!r}; the last one is {second['id']}\n")


def test_why_of_programs_that_store_by_themselves(call: Call, home: Path) -> None:
    with hotstart.Cache(home / "store") as cache:
        for arch in ("sm_80", "sm_90"):
            cache.put(hotstart.Key("nvrtc", name="k", arch=arch), {"x": b"1"}, cost=1.0)
            time.sleep(0.01)
    status, out, _ = call("why")
    assert status == 0
    assert [line.strip() for line in out.splitlines() if "→" in line or "never" in line] == [
        "arch sm_80 → sm_90",
        "never seen",
    ]
    newest, oldest = json.loads(call("why", "--json")[1])["entries"]
    assert (newest["status"], oldest["status"]) == ("changed", "never seen")


def test_why_without_a_run_says_how_to_get_one(call: Call) -> None:
    status, _, err = call("why", "--name", "serve")
    assert status == 1
    assert err == "hotstart: why: no run of 'serve' is recorded; runs are recorded by: hotstart run COMMAND\n"


def noted(home: Path, *events: dict[str, object]) -> None:
    (home / "torch").mkdir(parents=True, exist_ok=True)
    with (home / "torch" / "record.jsonl").open("a") as file:
        for event in events:
            file.write(
                json.dumps({"time": time.time(), "pid": 1, "key": "", "reason": "", "advice": "", **event}) + "\n"
            )
        file.write('{"cut')


def test_models_that_do_not_start_hot_are_explained(call: Call, home: Path) -> None:
    """The form is ``hotstart.torch``'s own, which ``tests/torch`` writes for real."""
    noted(
        home,
        {"event": "plain", "name": "GPT", "reason": "it breaks the graph", "advice": "remove the print in forward"},
        {"event": "hit", "name": "resnet"},
        {"event": "published", "name": "MLP", "seconds": 12.0},
        {"event": "nonsense", "name": "?"},
    )
    status, out, _ = call("why")
    assert (status, out) == (
        0,
        "GPT: runs as plain torch.compile: it breaks the graph; remove the print in forward\n"
        "resnet: started hot\n"
        "MLP: its package was built and verified in 12 s\n",
    )
    a_run(home)
    assert "GPT: runs as plain torch.compile" in call("why")[1]
    assert json.loads(call("stats", "--json")[1])["models"]["plain"] == 1
    assert "hotstart.torch.compile: 1 hit, 1 published, 1 plain\n" in call("stats")[1]
    assert 'hotstart_models_total{event="plain"} 1' in call("stats", "--prometheus")[1]


def test_what_a_run_would_set_as_json(call: Call, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    status, out, err = call("run", "--dry-run", "--json", "--only", "triton,jax", "true")
    plan = json.loads(out)
    assert (status, err, plan["left_alone"]) == (0, "", {"triton": ["TRITON_CACHE_DIR"]})
    assert plan["variables"]["JAX_COMPILATION_CACHE_DIR"] == f"{home}/frameworks/jax"
    assert not home.exists()


def test_the_record_of_a_run_as_json(home: Path) -> None:
    program = (
        "import os; d = os.environ['JAX_COMPILATION_CACHE_DIR']; os.makedirs(d); open(d + '/f-cache', 'w').write('x')"
    )
    command = [sys.executable, "-m", "hotstart", "run", "--json", "--name", "x", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    record = json.loads(done.stderr)
    assert (record["name"], [unit["framework"] for unit in record["units"]]) == ("x", ["jax"])
