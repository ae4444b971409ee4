from __future__ import annotations

import pytest

from cnrfmt.errors import DamagedError, UnsupportedError
from cnrfmt.format.blocks import Features, FileHeader, Slot, bit_names, check_block, seal
from cnrfmt.format.digests import digest

CONTAINER = bytes(range(1, 17))
SLOT = Slot(0, CONTAINER, 7, 3 * 4096, 300, 0x1234)


def reseal(page: bytes) -> bytes:
    return page[:120] + digest(page[:120]).to_bytes(8, "little") + page[128:]


def test_file_header_round_trip() -> None:
    header = FileHeader(CONTAINER, Features(1, 0, 0))
    page = header.pack()
    assert len(page) == 4096
    assert page[:8] == b"\x89CNRF\r\n\x1a"
    assert FileHeader.parse(page, "x") == header


def test_slot_round_trip() -> None:
    page = SLOT.pack()
    assert Slot.parse(page, "x", number=0, container_id=CONTAINER) == SLOT
    assert SLOT.committed_end == 4 * 4096


def test_every_changed_bit_of_a_slot_is_found() -> None:
    for bit in range(4096 * 8):
        page = bytearray(SLOT.pack())
        page[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedError, match="slot"):
            Slot.parse(bytes(page), "x", number=0, container_id=CONTAINER)


def test_every_changed_byte_of_a_header_is_found() -> None:
    for offset in range(4096):
        page = bytearray(FileHeader(CONTAINER).pack())
        page[offset] ^= 0x55
        with pytest.raises(DamagedError) as caught:
            FileHeader.parse(bytes(page), "x")
        assert caught.value.rule == "file-header"


@pytest.mark.parametrize(
    ("change", "number", "owner"),
    [
        ({}, 1, CONTAINER),
        ({}, 0, bytes(16)),
        ({"manifest_offset": 4096}, 0, CONTAINER),
        ({"manifest_offset": 3 * 4096 + 8}, 0, CONTAINER),
    ],
)
def test_a_slot_must_fit_its_place(change: dict[str, int], number: int, owner: bytes) -> None:
    slot = Slot(**{**SLOT.__dict__, **change})
    with pytest.raises(DamagedError) as caught:
        Slot.parse(slot.pack(), "x", number=number, container_id=owner)
    assert caught.value.rule == "slot"


def test_a_committed_end_must_follow_from_the_manifest() -> None:
    page = bytearray(SLOT.pack())
    page[64] ^= 1
    with pytest.raises(DamagedError, match="committed end"):
        Slot.parse(reseal(bytes(page)), "x", number=0, container_id=CONTAINER)


def test_features_are_looked_at_before_other_fields() -> None:
    page = bytearray(FileHeader(CONTAINER, Features(0, 0, 1 << 5)).pack())
    page[12] = 1
    with pytest.raises(UnsupportedError, match="incompat bit 5"):
        FileHeader.parse(reseal(bytes(page)), "x")
    page = bytearray(FileHeader(CONTAINER).pack())
    page[8] = 2
    with pytest.raises(UnsupportedError, match="format version 2"):
        FileHeader.parse(reseal(bytes(page)), "x")


def test_compat_bits_make_metadata_lenient() -> None:
    assert Features(1, 0, 0).lenient
    assert Features(0, 1, 0).lenient
    assert not Features().lenient
    assert Features(0, 6, 0).unknown_ro_compat == 6
    assert bit_names(6) == "bits 1, 2"
    assert Features(1, 2, 4) | Features(8, 0, 0) == Features(9, 2, 4)


def test_short_bytes_are_named() -> None:
    for page, rule in ((b"", "file-header"), (FileHeader(CONTAINER).pack()[:4095], "file-header")):
        with pytest.raises(DamagedError) as caught:
            FileHeader.parse(page, "x")
        assert caught.value.rule == rule
    with pytest.raises(DamagedError) as caught:
        check_block(b"\x89CNR", "S", 0, "x")
    assert caught.value.rule == "block-length"


def test_a_block_of_another_letter_or_seed_is_found() -> None:
    block = seal("S", b"", 5)
    assert check_block(block, "S", 5, "x") == block
    with pytest.raises(DamagedError, match="block-magic"):
        check_block(block, "T", 5, "x")
    with pytest.raises(DamagedError, match="block-digest"):
        check_block(block, "S", 6, "x")
