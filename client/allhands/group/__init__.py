"""Groups: the ranks that call together, their methods, and the ways to submit calls."""
