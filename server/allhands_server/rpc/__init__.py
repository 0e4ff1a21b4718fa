"""The gRPC port: service, authentication, decoding, reflection, message conversion."""
