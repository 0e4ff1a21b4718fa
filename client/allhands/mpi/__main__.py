"""`python -m allhands.mpi`: runs a program of mpi4py over allhands."""

import sys

from allhands.mpi.runner import run

run(sys.argv[1:])
