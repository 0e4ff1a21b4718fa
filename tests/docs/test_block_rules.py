"""A code block that is wrong is found, whatever its kind."""

import configparser
from pathlib import Path

import pytest
from ruamel.yaml.error import YAMLError

from support.documents.blocks import find_blocks
from support.documents.commands import find_mistakes, read_session, split_commands
from support.documents.rules import get_rule
from support.documents.runs import BlockRunner
from support.ranks.processes import Cluster

PAGE = "docs/page.md"


def check(text: str, cluster: Cluster, folder: Path) -> None:
    """Hold the blocks of a page against their rules."""
    blocks = find_blocks(text, PAGE)
    for block in blocks:
        get_rule(block)(block, BlockRunner(cluster, folder, blocks))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```\nx\n```\n", "no kind"),
        ("text\n\n    make run\n", "no kind"),
        ("```python3\nx\n```\n", "'python3' has no rule"),
        ("<!-- run: rank=2 -->\n```python\nx\n```\n", "'rank=2' is none of the options"),
        ("<!-- run: ranks=2 -->\ntext\n\n```python\nx\n```\n", "no block is beside"),
    ],
)
def test_a_block_that_does_not_say_what_it_is_is_refused(
    text: str, said: str, cluster: Cluster, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        check(text, cluster, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "```yaml\na: [\n```\n",
        "```json\n{'a': 1}\n```\n",
        "```toml\na = \n```\n",
        "```ini\na = 1\n```\n",
        "```dockerfile\nRUM true\n```\n",
        "```text\n$ allhands status\n```\n",
        "```sh\nallhands statos\n```\n",
        "    $ allhands kv put key value\n",
    ],
)
def test_a_block_with_a_mistake_fails(text: str, cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, ValueError, YAMLError, configparser.Error)):
        check(text, cluster, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "```python\nah.no_such_name()\n```\n",
        "<!-- run: ranks=2\nah.init_process_group()\nx = np.ones(1)\n-->\n"
        "```python\nah.all_reduce(x)\n```\n<!-- check:\nassert x[0] == 3\n-->\n",
        "<!-- run: session daemon -->\n```console\n$ allhands kv count demo a\n1\n```\n",
        "<!-- run: session daemon -->\n```console\n$ allhands kv get demo a\n```\n",
    ],
)
def test_a_block_that_does_something_else_fails(
    text: str, cluster: Cluster, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError):
        check(text, cluster, tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("allhands serve --liten a:1", "--liten"),
        ("allhands events train -o tabel", "tabel"),
        ("allhands kv", "has no command"),
        ("allhands lease grant demo", "SECONDS"),
        ("cd && allhands nothing", "no command nothing"),
        ("make run all", "no target all"),
        ("pip install 'allhands[https]'", "no extra https"),
        ("python -m allhandz.bench", "no module allhandz"),
        ("ALLHANDS_URI=a allhands status", "ALLHANDS_URI is no variable"),
        ("export ALLHANDS_URI=a", "ALLHANDS_URI is no variable"),
        ("allhands run -n 2 examples/hallo.py", "no file examples/hallo.py"),
        ("alhands status", "nothing is known of the program alhands"),
        ("docker run -p 1:1 image allhands serve --liten a:1", "--liten"),
    ],
)
def test_what_a_command_names_has_to_exist(text: str, said: str) -> None:
    found = [mistake for one in split_commands(text) for mistake in find_mistakes(one)]
    assert any(said in mistake for mistake in found), found


def test_a_command_that_is_right_has_no_mistakes() -> None:
    text = "ALLHANDS_URL=ah://h:7070 sudo allhands run -n 2 \\\n  examples/hello.py --any &  # go\n"
    [command] = split_commands(text)
    assert command.words == ("allhands", "run", "-n", "2", "examples/hello.py", "--any")
    assert find_mistakes(command) == []


def test_a_session_is_commands_with_what_they_print() -> None:
    session = "$ one \\\n    more\nprinted\nh1$ two\n"
    assert read_session(session) == [("one \\\n    more\n", "printed\n"), ("two\n", "")]


def test_code_of_comments_is_where_the_page_has_it() -> None:
    page = "Text\n\n<!-- run: daemon\na\n-->\n```python\nb\n```\n<!-- check:\nc\n-->\n"
    [block] = find_blocks(page, PAGE)
    assert (block.script, block.options) == ("\n\n\na\n\n\nb\n\n\nc\n", {"daemon": ""})
