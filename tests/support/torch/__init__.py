"""Ranks of torch.distributed, and tensors and trainings for them."""
