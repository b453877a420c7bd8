"""A pack cut into members as it comes: every member whole, in order, however the bytes are split; errors come out."""

from __future__ import annotations

import random
from queue import Queue

import pytest

from hotstart.remote.packs import Row
from hotstart.remote.streams import Workers, _Cutter


def rows_of(members: list[bytes]) -> list[Row]:
    rows, at = [], 0
    for number, data in enumerate(members):
        rows.append(Row(f"{number:064x}", at, len(data), b"", len(data), 0))
        at += len(data)
    return rows


@pytest.mark.parametrize("seed", range(200))
def test_members_are_whole_however_the_bytes_are_split(seed: int) -> None:
    chance = random.Random(seed)
    members = [chance.randbytes(chance.choice((0, 1, 50, 999))) for _ in range(30)]
    rows = rows_of(members)
    wanted = [row for row in rows if chance.random() < 0.6] or rows[:1]
    begin, end = wanted[0].offset, wanted[-1].offset + wanted[-1].length
    whole = b"".join(members)[begin:end]
    cutter = _Cutter(wanted)
    found = []
    while cutter.at < end:
        at = cutter.at - begin
        found += cutter.take(whole[at : at + chance.choice((1, 10, 400, 5000))])
    assert [(row.digest, bytes(data)) for row, data in found] == [
        (row.digest, members[int(row.digest, 16)]) for row in wanted[: len(found)]
    ]
    assert all(row.length == 0 for row in wanted[len(found) :])  # nothing more comes to tell of those


def test_what_lies_within_one_piece_is_not_copied() -> None:
    piece = bytes(1000)
    ((_, member),) = _Cutter(rows_of([bytes(600)])).take(piece)
    assert isinstance(member, memoryview)
    assert member.obj is piece


def test_an_error_of_a_worker_comes_out_and_the_queue_empties_all_the_same() -> None:
    queue: Queue[int | None] = Queue(1)
    done = []

    def work(number: int) -> None:
        if number == 3:
            raise ZeroDivisionError
        done.append(number)

    workers = Workers(2, queue, work)
    for number in range(1, 20):
        queue.put(number)
    with pytest.raises(ZeroDivisionError):
        workers.end()
    assert sorted(done) == [number for number in range(1, 20) if number != 3]
