"""A call in flight: what it is, how it is cut, who carries it out, how it ends."""
