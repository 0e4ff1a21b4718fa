"""Reads and writes of files in all forms: at offsets, at positions of a rank or of all, split."""

from collections.abc import Callable
from typing import Any

from allhands.mpi.buffers.messages import parse_receive, parse_send
from allhands.mpi.files.open_file import OpenFile
from allhands.mpi.p2p.requests import Request, completed_request, fill_status
from allhands.mpi.progress.transfers import Completed
from allhands.mpi.status import Status


class DataAccess:
    """Reads and writes; mixin of `File`.

    Collective forms move the data of each rank by itself: ranks need not wait for one another.
    Nonblocking forms and those that are split have moved the data when they return.
    """

    def _check(self) -> OpenFile:
        raise NotImplementedError

    def _read_at(self, offset: int, buf: Any) -> int:
        message, opened = parse_receive(buf), self._check()
        opened.check_readable()
        opened.check_random()
        return opened.read(offset, message)

    def _write_at(self, offset: int, buf: Any) -> int:
        message, opened = parse_send(buf), self._check()
        opened.check_writable()
        opened.check_random()
        return opened.write(offset, message)

    def _read_next(self, buf: Any) -> int:
        message, opened = parse_receive(buf), self._check()
        opened.check_readable()
        opened.check_random()
        return opened.read(opened.advance(opened.count(message)), message)

    def _write_next(self, buf: Any) -> int:
        message, opened = parse_send(buf), self._check()
        opened.check_writable()
        opened.check_random()
        return opened.write(opened.advance(opened.count(message)), message)

    def _read_shared(self, buf: Any) -> int:
        message, opened = parse_receive(buf), self._check()
        opened.check_readable()
        return opened.read(opened.pointer.take(opened.count(message)), message)

    def _write_shared(self, buf: Any) -> int:
        message, opened = parse_send(buf), self._check()
        opened.check_writable()
        return opened.write(opened.pointer.take(opened.count(message)), message)

    def _read_ordered(self, buf: Any) -> int:
        message, opened = parse_receive(buf), self._check()
        opened.check_readable()
        return opened.read(opened.take_ordered(message), message)

    def _write_ordered(self, buf: Any) -> int:
        message, opened = parse_send(buf), self._check()
        opened.check_writable()
        return opened.write(opened.take_ordered(message), message)

    # ------------------------------------------------------------ at an offset

    def Read_at(self, offset: int, buf: Any, status: Status | None = None) -> None:
        """Read at an element."""
        _finish(self._read_at(offset, buf), status)

    def Read_at_all(self, offset: int, buf: Any, status: Status | None = None) -> None:
        """Read at an element; a collective call."""
        _finish(self._read_at(offset, buf), status)

    def Write_at(self, offset: int, buf: Any, status: Status | None = None) -> None:
        """Write at an element."""
        _finish(self._write_at(offset, buf), status)

    def Write_at_all(self, offset: int, buf: Any, status: Status | None = None) -> None:
        """Write at an element; a collective call."""
        _finish(self._write_at(offset, buf), status)

    def Iread_at(self, offset: int, buf: Any) -> Request:
        """Read at an element; the request has ended."""
        return completed_request(self._read_at(offset, buf))

    def Iread_at_all(self, offset: int, buf: Any) -> Request:
        """Read at an element, collectively; the request has ended."""
        return completed_request(self._read_at(offset, buf))

    def Iwrite_at(self, offset: int, buf: Any) -> Request:
        """Write at an element; the request has ended."""
        return completed_request(self._write_at(offset, buf))

    def Iwrite_at_all(self, offset: int, buf: Any) -> Request:
        """Write at an element, collectively; the request has ended."""
        return completed_request(self._write_at(offset, buf))

    # ------------------------------------------------------------ at the position of this rank

    def Read(self, buf: Any, status: Status | None = None) -> None:
        """Read at the position of this rank."""
        _finish(self._read_next(buf), status)

    def Read_all(self, buf: Any, status: Status | None = None) -> None:
        """Read at the position of this rank; a collective call."""
        _finish(self._read_next(buf), status)

    def Write(self, buf: Any, status: Status | None = None) -> None:
        """Write at the position of this rank."""
        _finish(self._write_next(buf), status)

    def Write_all(self, buf: Any, status: Status | None = None) -> None:
        """Write at the position of this rank; a collective call."""
        _finish(self._write_next(buf), status)

    def Iread(self, buf: Any) -> Request:
        """Read at the position of this rank; the request has ended."""
        return completed_request(self._read_next(buf))

    def Iread_all(self, buf: Any) -> Request:
        """Read at the position of this rank, collectively; the request has ended."""
        return completed_request(self._read_next(buf))

    def Iwrite(self, buf: Any) -> Request:
        """Write at the position of this rank; the request has ended."""
        return completed_request(self._write_next(buf))

    def Iwrite_all(self, buf: Any) -> Request:
        """Write at the position of this rank, collectively; the request has ended."""
        return completed_request(self._write_next(buf))

    # ------------------------------------------------------------ at the position of all ranks

    def Read_shared(self, buf: Any, status: Status | None = None) -> None:
        """Read at the position of all ranks."""
        _finish(self._read_shared(buf), status)

    def Write_shared(self, buf: Any, status: Status | None = None) -> None:
        """Write at the position of all ranks."""
        _finish(self._write_shared(buf), status)

    def Iread_shared(self, buf: Any) -> Request:
        """Read at the position of all ranks; the request has ended."""
        return completed_request(self._read_shared(buf))

    def Iwrite_shared(self, buf: Any) -> Request:
        """Write at the position of all ranks; the request has ended."""
        return completed_request(self._write_shared(buf))

    def Read_ordered(self, buf: Any, status: Status | None = None) -> None:
        """Read at the position of all ranks, in the order of ranks; a collective call."""
        _finish(self._read_ordered(buf), status)

    def Write_ordered(self, buf: Any, status: Status | None = None) -> None:
        """Write at the position of all ranks, in the order of ranks; a collective call."""
        _finish(self._write_ordered(buf), status)

    # ------------------------------------------------------------ split collective calls

    def _begin(self, name: str, move: Callable[..., int], *arguments: Any) -> None:
        opened = self._check()
        opened.check_no_split()
        opened.begin_split(name, move(*arguments))

    def _end(self, name: str, status: Status | None) -> None:
        _finish(self._check().end_split(name), status)

    def Read_at_all_begin(self, offset: int, buf: Any) -> None:
        """Begin a `Read_at_all`."""
        self._begin("Read_at_all", self._read_at, offset, buf)

    def Read_at_all_end(self, buf: Any, status: Status | None = None) -> None:
        """End a `Read_at_all`."""
        self._end("Read_at_all", status)

    def Write_at_all_begin(self, offset: int, buf: Any) -> None:
        """Begin a `Write_at_all`."""
        self._begin("Write_at_all", self._write_at, offset, buf)

    def Write_at_all_end(self, buf: Any, status: Status | None = None) -> None:
        """End a `Write_at_all`."""
        self._end("Write_at_all", status)

    def Read_all_begin(self, buf: Any) -> None:
        """Begin a `Read_all`."""
        self._begin("Read_all", self._read_next, buf)

    def Read_all_end(self, buf: Any, status: Status | None = None) -> None:
        """End a `Read_all`."""
        self._end("Read_all", status)

    def Write_all_begin(self, buf: Any) -> None:
        """Begin a `Write_all`."""
        self._begin("Write_all", self._write_next, buf)

    def Write_all_end(self, buf: Any, status: Status | None = None) -> None:
        """End a `Write_all`."""
        self._end("Write_all", status)

    def Read_ordered_begin(self, buf: Any) -> None:
        """Begin a `Read_ordered`."""
        self._begin("Read_ordered", self._read_ordered, buf)

    def Read_ordered_end(self, buf: Any, status: Status | None = None) -> None:
        """End a `Read_ordered`."""
        self._end("Read_ordered", status)

    def Write_ordered_begin(self, buf: Any) -> None:
        """Begin a `Write_ordered`."""
        self._begin("Write_ordered", self._write_ordered, buf)

    def Write_ordered_end(self, buf: Any, status: Status | None = None) -> None:
        """End a `Write_ordered`."""
        self._end("Write_ordered", status)


def _finish(nbytes: int, status: Status | None) -> None:
    fill_status(status, Completed(nbytes=nbytes))
