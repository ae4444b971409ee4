"""The pages of a single file and the feature masks, field by field."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from cnrfmt.errors import DamagedError, UnsupportedError
from cnrfmt.format.blocks import Features, FileHeader, Slot, bit_names, check_id, magic
from cnrfmt.format.digests import digest
from cnrfmt.format.limits import MAX_BYTES, PAGE

CONTAINER = bytes(range(1, 17))
SLOT = Slot(1, CONTAINER, 7, 5 * PAGE, 3 * PAGE + 1, 0xABCDEF)
FIELDS = {"zero": 0, "number": 1, "owner": CONTAINER, "version": 7, "offset": 5 * PAGE, "length": 3 * PAGE + 1}


def sealed(letter: str, fields: bytes, rest: bytes = b"") -> bytes:
    body = (b"\x89CNR" + letter.encode() + b"\r\n\x1a" + fields).ljust(120, b"\0")
    return (body + digest(body).to_bytes(8, "little") + rest).ljust(PAGE, b"\0")


def slot(tail: bytes = b"", rest: bytes = b"", **change: Any) -> bytes:
    """A slot page laid out by hand."""
    f: dict[str, Any] = {**FIELDS, **change}
    end = f.get("end", -(-(f["offset"] + f["length"]) // PAGE) * PAGE)
    numbers = (f["version"], f["offset"], f["length"], 0xABCDEF, end)
    return sealed("H", struct.pack("<II16sQQQQQ", f["number"], f["zero"], f["owner"], *numbers) + tail, rest)


def header(masks: tuple[int, int, int] = (0, 0, 0), tail: bytes = b"", rest: bytes = b"", **change: Any) -> bytes:
    f: dict[str, Any] = {"major": 1, "minor": 0, "zero": 0, "owner": CONTAINER, **change}
    fields = struct.pack("<HHIQQQ16s", f["major"], f["minor"], f["zero"], *masks, f["owner"])
    return sealed("F", fields + tail, rest)


def parse(page: bytes, number: int = 1) -> Slot:
    return Slot.parse(page, "here", number=number, container_id=CONTAINER)


def refused(rule: str, call: Any, *args: Any) -> DamagedError:
    with pytest.raises(DamagedError) as caught:
        call(*args)
    assert caught.value.rule == rule, caught.value
    assert caught.value.place.startswith("here")
    return caught.value


def test_a_slot_is_packed_and_read_as_by_hand() -> None:
    assert SLOT.pack() == slot()
    assert parse(slot()) == SLOT
    assert SLOT.committed_end == 9 * PAGE
    assert replace(SLOT, manifest_length=3 * PAGE).committed_end == 8 * PAGE
    assert replace(SLOT, manifest_length=3 * PAGE - 1).committed_end == 8 * PAGE


@pytest.mark.parametrize(
    "change",
    [
        {"zero": 1},
        {"zero": 1 << 31},
        {"number": 0},
        {"number": 2},
        {"owner": bytes(16)},
        {"offset": 2 * PAGE},
        {"offset": 5 * PAGE + 64},
        {"offset": 0},
        {"end": 8 * PAGE},
        {"end": 10 * PAGE},
        {"end": 8 * PAGE + 1},
        {"tail": b"\x01"},
        {"tail": bytes(47) + b"\x01"},
        {"rest": b"\x01"},
        {"rest": bytes(PAGE - 129) + b"\x01"},
    ],
)
def test_what_a_slot_may_not_say(change: dict[str, Any]) -> None:
    refused("slot", parse, slot(**change))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"version": MAX_BYTES + 1}, "version"),
        ({"length": MAX_BYTES + 1}, "committed end"),
        ({"offset": 1 << 53}, "committed end"),
        ({"length": MAX_BYTES - 5 * PAGE + 1}, "committed end"),
    ],
)
def test_the_limits_of_a_slot(change: dict[str, Any], what: str) -> None:
    assert refused("limit", parse, slot(**change)).place == f"here, {what}"


@pytest.mark.parametrize(
    "change",
    [
        {"version": MAX_BYTES},
        {"version": 0},
        {"offset": 3 * PAGE},
        {"length": 0},
        {"length": (1 << 53) - 6 * PAGE},
    ],
)
def test_the_bounds_of_a_slot(change: dict[str, Any]) -> None:
    assert parse(slot(**change)).pack() == slot(**change)


def test_pages_that_are_cut_short() -> None:
    for length in (0, 127, 128, PAGE - 1):
        refused("file-header", parse, slot()[:length])
        refused("file-header", FileHeader.parse, header()[:length], "here")
    # What lies behind a page is somebody else's.
    assert parse(slot() + b"x") == SLOT
    assert FileHeader.parse(header() + b"x", "here") == FileHeader(CONTAINER)


def test_a_file_header_is_packed_and_read_as_by_hand() -> None:
    for features in (Features(), Features(1, 1 << 63, 0)):
        page = header((features.compat, features.ro_compat, 0))
        assert FileHeader(CONTAINER, features).pack() == page
        assert FileHeader.parse(page, "here") == FileHeader(CONTAINER, features)
    for owner in (b"\x01" + bytes(15), bytes(15) + b"\x01"):
        assert FileHeader.parse(header(owner=owner), "here") == FileHeader(owner)
    # A later minor version changes nothing.
    assert FileHeader.parse(header(minor=9), "here") == FileHeader(CONTAINER)


@pytest.mark.parametrize(
    "change",
    [
        {"zero": 1},
        {"zero": 1 << 31},
        {"owner": bytes(16)},
        {"tail": b"\x01"},
        {"tail": bytes(63) + b"\x01"},
        {"rest": b"\x01"},
        {"rest": bytes(PAGE - 129) + b"\x01"},
    ],
)
def test_what_a_file_header_may_not_say(change: dict[str, Any]) -> None:
    refused("file-header", FileHeader.parse, header(**change), "here")


def test_who_hands_in_another_file_is_told_so() -> None:
    error = refused("file-header", FileHeader.parse, b"PK\x03\x04".ljust(PAGE, b"x"), "here")
    assert "this is no cnr container" in error.advice
    assert error.expected == magic("F").hex(" ")


@pytest.mark.parametrize("change", [{"major": 0}, {"major": 2}, {"masks": (0, 0, 1)}, {"masks": (0, 0, 1 << 63)}])
def test_what_must_be_known_comes_before_other_fields(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        FileHeader.parse(header(**change, zero=1, tail=b"\x01", rest=b"\x01"), "here")
    assert caught.value.place == "here"
    feature = "format version" if "major" in change else "incompat bit"
    assert caught.value.feature.startswith(feature)


@pytest.mark.parametrize(
    ("mask", "words"), [(1, "bit 0"), (1 << 63, "bit 63"), (5, "bits 0, 2"), (1 << 62 | 1 << 63, "bits 62, 63")]
)
def test_bits_in_words(mask: int, words: str) -> None:
    assert bit_names(mask) == words


def test_masks_are_united_one_by_one() -> None:
    assert Features(1, 2, 4) | Features(2, 8, 8) == Features(3, 10, 12)
    assert Features(1, 2, 4) | Features() == Features(1, 2, 4)
    assert (Features().lenient, Features(0, 0, 1).lenient) == (False, False)
    assert Features(5, 0, 0).unknown_ro_compat == 0
    assert Features().pack() == struct.pack("<HHIQQQ", 1, 0, 0, 0, 0, 0)


def test_an_id_is_not_zero() -> None:
    check_id(bytes(15) + b"\x01", "commit id", "here")
    error = refused("segment-identity", check_id, bytes(16), "commit id", "here")
    assert error.place == "here, commit id"
