"""PyTorch's own tests of its collectives, run over a foreign backend."""
