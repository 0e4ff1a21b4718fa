"""Messages: how programs say what is in their buffers."""
