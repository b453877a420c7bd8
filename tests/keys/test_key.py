"""Key, CacheKey, DeviceClass and InputSpec: what a person writes, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from hotstart import CacheKey, DeviceClass, InputSpec, Key, UncacheableError, UsageError
from hotstart.keys.key import show_field


def test_every_field_counts_and_their_order_does_not() -> None:
    key = Key("nvrtc", source="a", arch="sm_90")
    assert key == Key("nvrtc", arch="sm_90", source="a")
    others = [
        Key("nvcc", source="a", arch="sm_90"),
        Key("nvrtc", source="b", arch="sm_90"),
        Key("nvrtc", source="a", arch="sm_100"),
        Key("nvrtc", source="a", arch="sm_90", extra=None),
        Key("nvrtc", source="a"),
        Key("nvrtc", sourc="a", e=1),
    ]
    assert len({key, *others}) == len(others) + 1


def test_neighbouring_fields_do_not_run_into_each_other() -> None:
    assert Key("k", a="bc", d="") != Key("k", a="b", d="c")
    assert Key("k", a="1", b="2") != Key("k", a="1s1:bs1:2")


def test_a_field_without_a_form_is_named() -> None:
    with pytest.raises(UncacheableError, match=r"options\[1\]") as caught:
        Key("k", source="x", options=["-O3", object()])
    assert caught.value.field == "options[1]"


@pytest.mark.parametrize("kind", ["", "a\nb", 3, None])
def test_a_kind_is_a_printable_name(kind: Any) -> None:
    with pytest.raises(UsageError, match="kind"):
        Key(kind)


def test_a_key_survives_pickling_and_nests() -> None:
    key = Key("k", source="x" * 1000, name="mul")
    again = pickle.loads(pickle.dumps(key))
    assert again == key
    assert again.fields() == key.fields()
    assert again.name == "mul"
    assert Key("outer", inner=key) != Key("outer", inner=key.digest)


def test_fields_can_be_shown_again_unless_they_are_long() -> None:
    fields = Key("k", arch="sm_90", threads=2, source="x" * 1000, device=DeviceClass.cuda(9, 0)).fields()
    assert show_field(fields["arch"]) == "'sm_90'"
    assert show_field(fields["threads"]) == "2"
    assert "1006 bytes" in show_field(fields["source"])
    assert "cuda/sm_90" in show_field(fields["device"])


def test_device_classes_are_of_a_class_not_of_a_device() -> None:
    names = [
        DeviceClass.cpu("x86_64"),
        DeviceClass.cpu("aarch64"),
        DeviceClass.cpu("x86_64", "avx512"),
        DeviceClass.cuda(9, 0),
        DeviceClass.cuda(9, 0, "a"),
        DeviceClass.cuda(10, 0),
        DeviceClass.cuda(1, 0),
        DeviceClass.cuda_any("ptx"),
        DeviceClass.rocm("gfx942"),
    ]
    assert len({Key("k", device=name) for name in names}) == len(names)
    assert DeviceClass.cuda(9, 0) == DeviceClass.cuda(9, 0)


def test_any_device_is_only_for_what_is_not_machine_code() -> None:
    for payload in ("cubin", ".so", "hsaco", "FATBIN"):
        with pytest.raises(UsageError, match="machine code"):
            DeviceClass.cuda_any(payload)
    assert Key("k", device=DeviceClass.cuda_any("ptx")).portable
    assert not Key("k", device=DeviceClass.cuda(9, 0)).portable


@pytest.mark.parametrize(
    "make",
    [
        lambda: DeviceClass.cuda(9, "0"),  # type: ignore[arg-type]
        lambda: DeviceClass.cuda(-1, 0),
        lambda: DeviceClass.cuda(9, 0, "x"),
        lambda: DeviceClass.rocm("942"),
        lambda: InputSpec((1, -2), "float32"),
        lambda: InputSpec((1, True), "float32"),
        lambda: InputSpec((1,), object()),
        lambda: CacheKey(graph_hash="", inputs=[], device=DeviceClass.cuda(9, 0)),
        lambda: CacheKey(graph_hash="x", inputs=[], device="cuda"),  # type: ignore[arg-type]
    ],
)
def test_nonsense_is_refused(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


def test_inputs_are_equal_however_their_type_is_written() -> None:
    assert InputSpec([2, -1], np.dtype("f4")) == InputSpec((2, -1), "float32") == InputSpec((2, -1), "torch.float32")
    assert InputSpec((2, -1), "float32") != InputSpec((2, 1), "float32")


def test_a_graph_key_counts_everything() -> None:
    def key(**changes: Any) -> str:
        arguments: dict[str, Any] = {
            "graph_hash": "g",
            "inputs": [InputSpec((2,), "float32")],
            "device": DeviceClass.cuda(9, 0),
        }
        return CacheKey(**{**arguments, **changes}).to_storage_key()

    variants = [
        key(),
        key(graph_hash="h"),
        key(inputs=[]),
        key(inputs=[InputSpec((-1,), "float32")]),
        key(inputs=[InputSpec((2,), "float16")]),
        key(inputs=[InputSpec((2,), "float32")] * 2),
        key(device=DeviceClass.cuda(8, 0)),
        key(options={"max_autotune": True}),
    ]
    assert len(set(variants)) == len(variants)
    assert all(len(name) == 64 and not name.strip("0123456789abcdef") for name in variants)
