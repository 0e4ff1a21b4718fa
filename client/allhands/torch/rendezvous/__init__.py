"""Joining a world as torch.distributed does: init methods, stores, torchrun."""
