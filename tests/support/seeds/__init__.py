"""PyTorch's tests as listings in documents beside this project, run over another backend."""
