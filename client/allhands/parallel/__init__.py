"""Data-parallel training above the plain calls: reducers, hooks, meshes, Join."""
