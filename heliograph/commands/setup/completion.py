"""``heliograph completion``: complete commands, verbs and options in a shell."""

from __future__ import annotations

import argparse
import sys

from heliograph import commands, exits, options
from heliograph.output import Output

DESCRIPTION = """\
Print a script with which a shell completes commands, verbs and options of `heliograph`.  Have the shell read it at its
start.
"""
EXAMPLES = """\
  heliograph completion bash >> ~/.bashrc
  heliograph completion zsh > ~/.zfunc/_heliograph
  heliograph completion fish > ~/.config/fish/completions/heliograph.fish
"""

# The shell asks for the words that may stand at the cursor; it completes names of files itself.
_SCRIPTS = {
    "bash": """\
_heliograph() {
    local IFS=$'\\n'
    COMPREPLY=($(heliograph completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _heliograph heliograph
""",
    "zsh": """\
#compdef heliograph
_heliograph() {
    local -a found
    found=("${(@f)$(heliograph completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -a found; else _files; fi
}
compdef _heliograph heliograph
""",
    "fish": """\
function __heliograph_words
    set -l typed (commandline -opc)
    heliograph completion words -- $typed[2..-1] (commandline -ct) 2>/dev/null
end
complete -c heliograph -a '(__heliograph_words)'
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", type=_shell, help=f"one of {', '.join(_SCRIPTS)}")
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)


def run(args: argparse.Namespace, _output: Output) -> int:
    if args.shell == "words":
        sys.stdout.writelines(f"{word}\n" for word in candidates(args.words))
    else:
        sys.stdout.write(_SCRIPTS[args.shell])
    return exits.OK


def _shell(text: str) -> str:
    """Also takes the word with which the scripts ask; the error does not offer that one."""
    if text not in (*_SCRIPTS, "words"):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(_SCRIPTS)}")
    return text


def candidates(words: list[str]) -> list[str]:
    """The completions of the last word.  ``words`` are the words behind ``heliograph``."""
    from heliograph import parsing

    *before, begun = words or [""]
    called = parsing.called_command(before)
    if called and called != "help" and called not in commands.SUMMARIES:
        return []
    *_, parser = parsing.parser_chain(parsing.build_parser(only=called or "help"), before)
    known = list(parsing.subparsers_of(parser))
    if called in ("", "help"):
        known.append("help")
    if begun.startswith("-"):
        known = parsing.options_of(parser)
    elif before and before[-1].startswith("--"):
        known = options.choices_of(parser, before[-1])
    return [word for word in known if word.startswith(begun)]
