"""``etc/heliograph.conf`` and ``docs/options.md`` are generated from the options in the code, and are current.

A default that depended on the machine, its name or its directories, would fail the first test everywhere else.
"""

from __future__ import annotations

import io
import pathlib

from oslo_config import cfg, generator

from heliograph import option_reference
from pubsub_api import config
from tests.helpers.paths import ROOT

SAMPLE = ROOT / "etc" / "heliograph.conf"
OPTIONS_MAX = 151
"""A new option takes the place of another one, or has a very good reason."""
GENERATOR = ROOT / "etc" / "oslo-config-generator" / "heliograph.conf"


def generator_conf() -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    generator.register_cli_opts(conf)
    conf(["--config-file", str(GENERATOR)], default_config_files=[], default_config_dirs=[])
    return conf


def test_the_sample_is_current() -> None:
    generated = io.StringIO()
    generator.generate(generator_conf(), output_file=generated)
    assert SAMPLE.read_text() == generated.getvalue(), "the options have changed: call ./run genconfig and commit"


def test_the_page_of_all_options_is_current() -> None:
    page = (ROOT / option_reference.PAGE).read_text()
    assert page == option_reference.page(), "the options have changed: call ./run genconfig and commit"


def test_what_an_operator_sees_is_little_and_the_rest_is_bounded() -> None:
    options = [option for listed in option_reference.all_options().values() for option in listed]
    assert sum(not option.advanced for option in options) <= 45
    assert len(options) <= OPTIONS_MAX


def test_the_sample_can_be_used_as_it_is() -> None:
    conf = config.new_conf([SAMPLE])
    config.check_combinations(conf)
    assert conf.pubsub.pub_sub_driver == "zmq"


def test_the_sample_with_every_line_switched_on_means_the_same(tmp_path: pathlib.Path) -> None:
    """A default is written the way it is read: remove the '#' before any option and nothing changes."""
    path = tmp_path / "heliograph.conf"
    lines = SAMPLE.read_text().splitlines()
    path.write_text("\n".join(line[1:] if _is_default(line) else line for line in lines))
    written, plain = config.new_conf([path]), config.new_conf()
    for group, options in option_reference.all_options().items():
        for conf in (written, plain):
            conf.register_opts(options, group=group)
        for option in options:
            assert written[group][option.dest] == plain[group][option.dest], f"[{group}] {option.name}"


def _is_default(line: str) -> bool:
    # "#name = value"; a name without value is an option that is unset unless the user sets it.
    name, separator, value = line.partition(" = ")
    return bool(separator and value) and name.startswith("#") and name[1:].isidentifier() and value != "<None>"
