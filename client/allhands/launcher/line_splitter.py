"""Cut the output of a rank into whole lines. Bytes in, bytes out; no encoding is assumed."""

MAX_LINE_BYTES = 64 * 1024
"""A longer line is cut, so that output without line ends takes bounded memory."""


class LineSplitter:
    """Buffers the chunks of one stream until lines are complete."""

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._partial = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        """Return the lines completed by a chunk, each with a line end."""
        end = chunk.rfind(b"\n") + 1
        lines = b""
        if end:
            lines = bytes(self._partial) + chunk[:end]
            self._partial.clear()
        self._partial += chunk[end:]
        if len(self._partial) >= self._max_bytes:
            lines += self.flush()
        return lines

    def flush(self) -> bytes:
        """Return the incomplete last line with a line end added; empty if there is none."""
        if not self._partial:
            return b""
        line = bytes(self._partial) + b"\n"
        self._partial.clear()
        return line


def prefix_lines(prefix: bytes, lines: bytes) -> bytes:
    """Put `prefix` before each of the lines; `lines` is empty or ends with a line end."""
    if not lines:
        return b""
    return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"
