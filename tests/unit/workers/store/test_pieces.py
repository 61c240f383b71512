"""Objects in pieces: gathered in memory, they are put as a whole when they are closed."""

from workers.store.objects import Gathered


def test_the_whole_is_put_once_when_it_is_closed() -> None:
    put: list[bytes] = []
    new = Gathered(put.append)
    piece = bytearray(b"one ")
    new.write(piece)
    piece[:] = b"xxxx"
    new.write(b"two")
    assert put == []
    new.close()
    new.drop()
    assert put == [b"one two"]


def test_dropped_pieces_are_not_put() -> None:
    put: list[bytes] = []
    new = Gathered(put.append)
    new.write(b"one")
    new.drop()
    assert put == []


def test_an_object_without_pieces_is_empty() -> None:
    put: list[bytes] = []
    Gathered(put.append).close()
    assert put == [b""]
