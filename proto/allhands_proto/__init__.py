"""The wire of allhands: generated protobuf and gRPC code, by version."""
