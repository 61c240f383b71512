"""The queue never holds more than it may, and nobody waits for ever."""

import threading

from ingest.recording.writer import ByteQueue


def test_there_is_room_up_to_the_limit_and_for_one_larger_item() -> None:
    queue: ByteQueue[str] = ByteQueue(100)
    assert queue.reserve(500, wait=False)
    assert not queue.reserve(1, wait=False)
    queue.release(500)
    assert queue.reserve(60, wait=False)
    assert queue.reserve(40, wait=False)
    assert queue.held_nbytes == 100
    assert not queue.reserve(1, wait=False)
    assert queue.reserve_margin(1024)
    assert not queue.reserve_margin(1 << 40)


def test_a_writer_that_holds_everything_back_is_told_that_somebody_waits() -> None:
    queue: ByteQueue[str] = ByteQueue(10)
    assert queue.reserve(10, wait=True)
    has_room = threading.Event()

    def wait_for_room() -> None:
        assert queue.reserve(5, wait=True)
        has_room.set()

    threading.Thread(target=wait_for_room, daemon=True).start()
    assert queue.take() is None
    queue.release(10)
    assert has_room.wait(60)
    assert queue.held_nbytes == 5
