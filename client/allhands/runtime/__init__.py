"""What runs beside the caller: the loop's thread, callbacks, signals, notices of the end."""
