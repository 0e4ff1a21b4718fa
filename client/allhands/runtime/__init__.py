"""Threads and process: loop thread, callbacks, signals, exit notices."""
