"""Stores: keys and values shared by the ranks of a job, with c10d's methods.

Each is imported when first used: most ranks have none.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
