"""torch.compile and dispatch: operators, kernels, exclusion from graphs."""
