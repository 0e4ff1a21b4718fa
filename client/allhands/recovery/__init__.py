"""How groups go on when ranks are lost or come: what is decided together, and what is done then."""
