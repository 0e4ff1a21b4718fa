"""Ranks of torch.distributed, with tensors and trainings."""
