"""`python ssh_double.py [OPTIONS] HOST LINE`: a stand-in for ssh that runs a line for a shell here.

SSH_DOUBLE_HOSTS is JSON: the hosts there are, each with the process whose namespaces it has; 0: the
namespaces of this one. SSH_DOUBLE_LOG names a file to which the arguments are appended.
"""

import json
import os
import sys
from pathlib import Path

from allhands.bench import netns

_UNREACHABLE = 255
"""Exit status of ssh itself."""


def main(arguments: list[str]) -> None:
    if log := os.environ.get("SSH_DOUBLE_LOG"):
        with Path(log).open("a") as file:
            file.write(f"{json.dumps(arguments)}\n")
    while arguments[0].startswith("-"):
        arguments = arguments[2 if arguments[0] == "-o" else 1 :]
    host, line = arguments
    holder = json.loads(os.environ["SSH_DOUBLE_HOSTS"]).get(host)
    if holder is None:
        sys.stderr.write(f"ssh: Could not resolve hostname {host}\n")
        sys.exit(_UNREACHABLE)
    inside = netns.make_enter_command(holder) if holder else ()
    command = [*inside, "sh", "-c", line]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
