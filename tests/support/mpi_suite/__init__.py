"""mpi4py's own tests, run over allhands and, for comparison, over MPI libraries."""
