"""All ranks, together: collective communication among Python processes.

The public names are listed in `__init__.pyi`; each is imported when first used, so that commands
which need no arrays answer at once.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
