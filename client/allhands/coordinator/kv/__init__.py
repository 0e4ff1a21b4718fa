"""Key-value calls over the framed TCP port, blocking and on a loop, and their values."""
