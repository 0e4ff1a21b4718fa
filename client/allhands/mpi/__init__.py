"""MPI for Python programs: the interface of mpi4py over allhands.

`python -m allhands.mpi prog.py` or `allhands run --mpi -n 4 prog.py` runs a program that says
`from mpi4py import MPI`; `from allhands.mpi import MPI` is the same by name.
"""
