"""Messages from point to point, over shared memory or links."""
