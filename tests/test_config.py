"""Configuration: what wins over what, and where each value is said to come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import hotstart
from hotstart.config import home_directory, load


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("HOTSTART_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "project" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project" / "deep")


def test_stronger_places_win_and_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert load().sources["max_size"] == "default"
    user = tmp_path / "home" / ".config" / "hotstart" / "hotstart.toml"
    user.parent.mkdir(parents=True)
    user.write_text('max_size = "1GiB"\npolicy = "lru"\nmemory = 0\n')
    assert (load()["max_size"], load().sources["max_size"]) == ("1GiB", str(user))
    project = tmp_path / "project" / "hotstart.toml"
    project.write_text('max_size = "2GiB"\npolicy = "cost"\n')
    assert (load()["max_size"], load().sources["max_size"]) == ("2GiB", str(project))
    monkeypatch.setenv("HOTSTART_MAX_SIZE", "3GiB")
    config = load()
    assert (config["max_size"], config.sources["max_size"]) == ("3GiB", "HOTSTART_MAX_SIZE")
    assert (config["policy"], config["memory"]) == ("cost", 0)
    with hotstart.open(max_size="4GiB") as cache:
        assert cache.stats()["max_size"] == 4 << 30


def test_home_is_found_in_this_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert home_directory() == str(tmp_path / "home" / ".cache" / "hotstart")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert home_directory() == str(tmp_path / "xdg" / "hotstart")
    monkeypatch.setenv("HOTSTART_HOME", str(tmp_path / "own"))
    with hotstart.open() as cache:
        assert cache.put(hotstart.Key("test"), {"x": b"1"})
    assert (tmp_path / "own" / "store" / "format").exists()


def test_without_a_usable_home_there_is_a_private_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert home_directory() == str(tmp_path / f"hotstart-{os.geteuid()}")


@pytest.mark.parametrize("text", ["1", "true", "on", "YES"])
def test_switched_off_it_is_absent_but_takes_every_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    monkeypatch.setenv("HOTSTART_DISABLE", text)
    monkeypatch.setenv("HOTSTART_HOME", str(tmp_path / "own"))
    cache = hotstart.open()
    key = hotstart.Key("test")
    assert cache.get_or_compile(key, lambda: {"x": b"1"})["x"] == b"1"
    assert cache.get(key) is None
    assert not (tmp_path / "own").exists()


def test_nonsense_is_refused_with_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOTSTART_READ_ONLY", "perhaps")
    with pytest.raises(hotstart.UsageError, match="HOTSTART_READ_ONLY"):
        load()
    monkeypatch.delenv("HOTSTART_READ_ONLY")
    (tmp_path / "project" / "hotstart.toml").write_text("max_size = ")
    with pytest.raises(hotstart.UsageError, match=r"hotstart\.toml"):
        load()


def test_unknown_settings_are_said_and_ignored(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "project" / "hotstart.toml").write_text('colour = "red"\n')
    load()
    assert "'colour' is ignored" in capfd.readouterr().err


def test_layers_come_from_a_path_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("a", "b"):
        with hotstart.Cache(tmp_path / name) as layer:
            layer.put(hotstart.Key(name), {"x": name.encode()})
    monkeypatch.setenv("HOTSTART_UNDER", f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}")
    with hotstart.open(path=tmp_path / "mine") as cache:
        assert all(cache.get(hotstart.Key(name)) is not None for name in ("a", "b"))
