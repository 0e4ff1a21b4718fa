"""Hook in the start of the ranks' interpreter: there ranks are forked, and then go on.

On the path only of the interpreter that `launcher.forking` starts with the command of the ranks,
which imports this file before the program is looked at. So a forked rank runs its program as any
interpreter does: with the same arguments, path, flags, `__main__`, tracebacks and exit statuses.
"""

import importlib
import sys
from pathlib import Path

from allhands.launcher.fork_server import serve

serve(str(Path(__file__).parent))
# The one of the environment, if there is one, as if this had not been found first.
del sys.modules["sitecustomize"]
importlib.import_module("sitecustomize")
