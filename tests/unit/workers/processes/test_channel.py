"""Messages over a pair of sockets."""

import socket
import threading

import pytest

from workers.processes.worker import Channel


def pair() -> tuple[Channel, Channel]:
    ours, theirs = socket.socketpair()
    return Channel(ours), Channel(theirs)


def test_messages_arrive_whole_and_in_order() -> None:
    ours, theirs = pair()
    messages = [b"", b"a", bytes(range(256)) * 20_000]

    def send() -> None:
        for message in messages:
            ours.send(message)

    thread = threading.Thread(target=send)
    thread.start()
    assert [theirs.receive() for _ in messages] == messages
    thread.join()
    ours.close()
    theirs.close()


def test_the_end_of_a_channel_reaches_both_ends() -> None:
    ours, theirs = pair()

    def wait() -> None:
        with pytest.raises(EOFError):
            ours.receive()

    waiting = threading.Thread(target=wait)
    waiting.start()
    ours.close()
    waiting.join(30)
    assert not waiting.is_alive()
    with pytest.raises(EOFError):
        theirs.receive()
    with pytest.raises(EOFError):
        ours.send(b"more")
    theirs.close()
