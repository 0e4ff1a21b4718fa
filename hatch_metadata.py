"""Completes the project's metadata: its addresses, and a README whose links work on an index.

Every installation that builds comes here first, and ends here where the system is not Linux: an
index has no marker for that.
"""

import re
import sys
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# Where, after `](`, the path of a file of the repository begins.
RELATIVE_LINK = re.compile(r"(?<=\]\()(?=[\w./-]+\.\w+[)#])")


class Metadata(MetadataHookInterface):
    PLUGIN_NAME = "custom"

    def __init__(self, root: str, config: dict[str, Any]) -> None:
        super().__init__(root, config)
        if sys.platform != "linux":
            # Without a traceback: whoever reads this has asked pip for allhands.
            raise SystemExit(
                f"allhands runs on Linux only, and this is {sys.platform}: use a Linux machine, a "
                "container, or WSL on Windows"
            )

    def update(self, metadata: dict[str, Any]) -> None:
        repository: str = self.config["repository"]
        files = f"{repository}/blob/main/"
        metadata["urls"] = {
            "Source": repository,
            "Documentation": f"{files}docs",
            "Changelog": f"{files}CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": RELATIVE_LINK.sub(files, readme),
        }
