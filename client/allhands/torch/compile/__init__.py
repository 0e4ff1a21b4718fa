"""torch.compile and dispatch: operators, kernels, what stays out of graphs."""
