"""PyTorch's own tests of its collectives, run over another backend."""
