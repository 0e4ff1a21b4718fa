"""The framed TCP port for key-value calls."""
