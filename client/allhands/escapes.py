"""Text from elsewhere made fit for a terminal or a log, which obey control characters.

Keys, stacks and reasons may hold anything; they are escaped where they are shown.
"""


def escape_line(text: str) -> str:
    """Return the text with whatever is not printable as Python writes it: `\\x1b`, `\\n`."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def escape_lines(text: str) -> str:
    """Do the same, but for the ends of lines."""
    return "\n".join(map(escape_line, text.split("\n")))
