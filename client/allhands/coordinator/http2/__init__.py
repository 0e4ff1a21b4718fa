"""gRPC calls on an event loop alone: HTTP/2 by `h2`, without the seven threads of gRPC's core."""
