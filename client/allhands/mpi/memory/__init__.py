"""Memory of programs: their buffers as bytes, memory as an object, constants that stand for it."""
