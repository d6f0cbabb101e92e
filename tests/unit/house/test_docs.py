"""The documentation says what the code says: tables, names, options, links and commands are compared with it."""

from __future__ import annotations

import ast
import configparser
import dataclasses
import importlib
import importlib.metadata
import json
import pathlib
import re
import shlex
import shutil
from xml.etree import ElementTree

import msgspec
import pytest
import yaml
import zmq.auth
from oslo_config import cfg

import durability_service.client
import durability_service.config
import durability_service.errors
import durable_log.config
import durable_log.loading
import durable_log.recording.recorder
import durable_log.segments.columns
import durable_log.upkeep.maintenance
import nb_api.config
import nb_api.errors
import nb_api.loading
import pubsub_api
from bench import cli as bench_cli
from heliograph import parsing as command
from heliograph import wire_reader
from heliograph.commands.bus import drivers
from pubsub_api import cache_node, config, loading
from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.events import Event, encode_event, pack_body
from pubsub_api.core.receiving.instream import TRANSITIONS
from pubsub_api.core.receiving.resync_requests import Reason
from pubsub_api.testing import simulator
from tests.helpers import code_map, documents
from tests.helpers.documents import Block, plain
from tests.helpers.paths import ROOT, TLS
from tests.helpers.statistic_fields import fields_of

GUARANTEES = "docs/guarantees.md"
WIRE_FORMAT = "docs/wire-format.md"
LANGUAGES = {"python", "sh", "bash", "ini", "hex", "text", "json5"}
"""A block of any of these but the last is run or checked, ``bash`` by the test of the tutorial; ``text`` is for
diagrams, formulas and what is printed."""
EXAMPLE_LINES_MAX = 60


# -- tables that repeat the code


def test_the_table_of_drivers_is_current() -> None:
    shipped = [row for row in drivers.find_drivers() if row.target.startswith("heliograph_drivers.")]
    assert shipped
    assert drivers.markdown(shipped) in documents.read("README.md"), "paste: heliograph drivers --markdown"


def test_the_states_of_a_stream_are_those_of_the_code() -> None:
    stated = [tuple(row[:3]) for row in documents.table(GUARANTEES, "States of a stream")]
    assert stated == [(state.value, cause.value, after.value) for (state, cause), after in TRANSITIONS.items()]


def test_the_reasons_of_resyncs_are_those_of_the_code_in_their_order() -> None:
    stated = [plain(row[0]) for row in documents.table(GUARANTEES, "Resyncs")]
    assert stated == [reason.value for reason in Reason]


@pytest.mark.parametrize(
    "statistics", [pubsub_api.SubscriberStatistics, pubsub_api.PublisherStatistics, cache_node.CacheStatistics]
)
def test_every_statistic_is_explained(statistics: type) -> None:
    stated = documents.table(GUARANTEES, statistics.__name__)
    assert [plain(row[0]) for row in stated] == list(fields_of(statistics))
    assert all(row[1] for row in stated)


def test_what_drivers_count_is_explained() -> None:
    stated = [tuple(plain(cell) for cell in row[:3]) for row in documents.table(GUARANTEES, "What drivers count")]
    counted = []
    for name in ("memory", "zmq", "zenoh", "redis", "longpoll"):
        used = loading.build_driver(loading.conf_from_url(f"{name}://127.0.0.1{'' if name == 'memory' else ':1'}"))
        counted += [(name, "publisher", counter) for counter in used.get_publisher().counters]
        counted += [(name, "subscriber", counter) for counter in used.get_subscriber().counters]
    assert stated == counted


def test_the_columns_of_segments_are_those_of_the_code() -> None:
    stated = [plain(row[0]) for row in documents.table("docs/durable-log.md", "Sealed segments")]
    assert stated[: len(durable_log.segments.columns.EVENT_COLUMNS)] == list(durable_log.segments.columns.EVENT_COLUMNS)


@pytest.mark.parametrize(
    "statistics",
    [durable_log.recording.recorder.RecorderStatistics, durable_log.upkeep.maintenance.MaintenanceStatistics],
)
def test_every_statistic_of_a_log_is_explained(statistics: type) -> None:
    stated = documents.table("docs/durable-log.md", statistics.__name__)
    assert [plain(row[0]) for row in stated] == [field.name for field in dataclasses.fields(statistics)]


def log_templates() -> set[str]:
    """The messages that the library logs, before their arguments are put in."""
    calls = [
        node
        for path, tree in code_map.trees().items()
        if path.startswith(("pubsub_api/", "drivers/"))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("LOG.")
    ]
    texts = {argument.value for call in calls for argument in call.args if isinstance(argument, ast.Constant)}
    return {text for text in texts if isinstance(text, str)}


def test_the_log_messages_that_are_explained_exist() -> None:
    patterns = [re.sub(r"%[sd]", ".*", re.escape(template)) for template in log_templates()]
    for row in documents.table("docs/operating.md", "Logs"):
        shown = plain(row[0]).replace("...", "x")
        assert any(re.fullmatch(pattern, shown) for pattern in patterns), row[0]


def test_promises_name_profiles_that_exist() -> None:
    named = {
        name
        for row in documents.table(GUARANTEES, "How each promise is tested")
        for name in re.findall(r"`(\w+)`", row[1])
    }
    assert named <= set(simulator.PROFILES)
    assert len(named) > 5


def test_tests_that_are_named_exist() -> None:
    named = [span for page in documents.pages() for span in documents.spans(page) if span.startswith("tests/")]
    assert any("::" in name for name in named)
    for name in named:
        path, _, function = name.partition("::")
        assert (ROOT / path).is_file(), name
        assert f"def {function}" in documents.read(path), name


# -- the wire format


def sample_frame() -> bytes:
    stamp = 1_700_000_000_000_000_000
    event = Event(table="port", key="p1", action="set", value={"up": True}, version=42)
    return frames.pack(
        frames.Kind.DATA, bytes(range(16)), "t/p", pack_body([encode_event(event, stamp)]),
        first=7, after=6, count=1, timestamp=stamp,
    )  # fmt: skip


def test_the_worked_example_is_a_frame() -> None:
    (block,) = documents.blocks("hex")
    shown = bytes.fromhex("".join(re.split(r"\s{2,}", line)[0] for line in block.text.splitlines()))
    assert shown == sample_frame()
    (read,) = wire_reader.read_frames(shown)
    assert read.events == [
        {
            "table": "port", "key": "p1", "action": "set", "value": {"up": True}, "version": 42,
            "timestamp": 1_700_000_000_000_000_000,
        }
    ]  # fmt: skip
    (program,) = [block for block in documents.blocks("python") if "FRAME = bytes.fromhex" in block.text]
    assert "".join(re.findall(r'"([0-9a-f ]+)"', program.text)).replace(" ", "") == shown.hex()


def test_the_offsets_are_those_of_a_frame() -> None:
    frame = sample_frame()
    rows = [row for row in documents.table(WIRE_FORMAT, "Layout") if row[0].isdigit()]
    assert [row[0] for row in rows] == ["0", "1", "4", "5", "6", "7", "25", "34", "43", "48", "57"]
    for offset, shown, element in rows:
        mark = re.match(r"`((?:[0-9a-f]{2} ?)+)`", shown)
        if mark:
            assert frame[int(offset) :].startswith(bytes.fromhex(mark[1])), element


def test_kinds_and_flags_are_those_of_the_code() -> None:
    kinds = {plain(row[1]): int(row[0]) for row in documents.table(WIRE_FORMAT, "Kinds")}
    assert kinds == {kind.name: kind.value for kind in frames.Kind}
    flags = {plain(row[1]): int(row[0]) for row in documents.table(WIRE_FORMAT, "Flags")}
    assert flags == {flag.name: flag.value for flag in frames.Flag if flag.value}


def test_the_fields_of_bodies_are_those_of_the_code() -> None:
    events, bodies = documents.tables(documents.section(WIRE_FORMAT, "Bodies"))
    assert [plain(row[1]) for row in events[1:]] == [
        field.name for field in msgspec.structs.fields(Event) if field.name != "topic"
    ]
    stated = [(row[0], plain(row[1])) for row in bodies[1:]]
    kinds = (messages.Hello, messages.Bye, messages.Query, messages.Reply)
    assert stated == [(kind.__name__.upper(), field.name) for kind in kinds for field in msgspec.structs.fields(kind)]


# -- options


def known_options() -> dict[str, dict[str, cfg.Opt]]:
    """Group -> name -> option, as the sample configuration lists them."""
    known: dict[str, dict[str, cfg.Opt]] = {}
    for entry_point in importlib.metadata.entry_points(group="oslo.config.opts"):
        if entry_point.name.startswith("heliograph."):
            for group, options in entry_point.load()():
                known.setdefault(str(group), {}).update({option.name: option for option in options})
    return known


def find_option(name: str) -> cfg.Opt:
    """The option that ``name`` or ``[group] name`` stands for."""
    found = re.fullmatch(r"(?:\[([\w:]+)\] )?(\w+)", name)
    assert found, name
    known = {group.partition(":")[0]: options for group, options in known_options().items()}  # kind:name
    options = known[(found[1] or config.GROUP).partition(":")[0]]
    assert found[2] in options, f"there is no option {name}"
    return options[found[2]]


def test_options_in_tables_exist_and_have_the_stated_default() -> None:
    checked = 0
    for page in documents.pages():
        for header, *rows in documents.tables(documents.prose(page)):
            if header[:2] == ["Option", "Default"]:
                for row in rows:
                    checked += 1
                    assert row[1] == str(find_option(plain(row[0])).default), f"{page}: {row[0]}"
    assert checked > 40


def test_defaults_in_parentheses_are_right() -> None:
    stated = re.findall(r"`([\w\[\] ]+)` \(([\d.]+)(?: s)?\)", documents.section(GUARANTEES, "Times"))
    assert len(stated) >= 10
    for name, value in stated:
        assert float(value) == float(find_option(name).default), name


def test_options_that_are_named_with_their_group_exist() -> None:
    for page in documents.pages():
        for span in documents.spans(page):
            if re.fullmatch(r"\[\w+\] \w+", span):
                find_option(span)


# -- names


def test_modules_and_attributes_that_are_named_exist() -> None:
    for page in documents.pages():
        for span in documents.spans(page):
            if re.fullmatch(r"(?:pubsub_api|nb_api|durable_log)(\.\w+)+", span):
                parent, _, name = span.rpartition(".")
                module = importlib.import_module(parent)
                assert hasattr(module, name) or importlib.import_module(span), f"{page}: {span}"
            elif (found := re.fullmatch(r"([A-Z]\w+)\.(\w+)(?:\(.*\))?", span)) and hasattr(pubsub_api, found[1]):
                fields = getattr(getattr(pubsub_api, found[1]), "__struct_fields__", ())
                assert hasattr(getattr(pubsub_api, found[1]), found[2]) or found[2] in fields, f"{page}: {span}"


def test_classes_that_are_named_exist() -> None:
    known = {
        node.name for tree in code_map.trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }
    for page in documents.pages():
        if str(page) == code_map.NAMES:
            continue  # made of the names themselves, types for annotations too
        for span in documents.spans(page):
            if re.fullmatch(r"(?:[A-Z][a-z]+){2,}", span):
                assert span in known, f"{page}: {span}"


def test_files_that_are_named_exist() -> None:
    for page in documents.pages():
        for span in documents.spans(page):
            if re.fullmatch(r"(?:examples|etc|pubsub_api|drivers|bench)/[\w/.-]+", span):
                assert (ROOT / span).exists(), f"{page}: {span}"


# -- pages


@pytest.mark.parametrize("page", documents.pages(), ids=str)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    for target in documents.links(page):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        where = (ROOT / page.parent / path).resolve() if path else ROOT / page
        assert where.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in documents.anchors(where), f"{page}: {target}"


def test_the_index_lists_every_page() -> None:
    listed = {pathlib.Path("docs") / target.partition("#")[0] for target in documents.links("docs/README.md")}
    assert {page for page in documents.pages() if page.name != "README.md"} <= listed


def test_the_site_has_every_page() -> None:
    """Decisions are found through the index."""
    navigation = yaml.safe_load(documents.read("mkdocs.yml"))["nav"]
    named = re.findall(r"[\w-]+\.md", str(navigation))
    assert sorted(named) == sorted(page.name for page in documents.pages() if str(page.parent) == "docs")


def test_decisions_are_numbered_and_have_their_parts() -> None:
    decisions = [page for page in documents.pages() if page.parent.name == "decisions"]
    numbers = [page.name[:5] for page in decisions]  # one that was given to a decision not taken is missing
    assert numbers == sorted(set(numbers))
    assert all(re.fullmatch(r"\d{4}-", number) for number in numbers)
    listed = documents.table("docs/README.md", "Decisions")
    titles = {number: re.sub(r"\[(.*)\]\(.*\)", r"\1", link) for number, link in listed}
    for page in decisions:
        headings = re.findall(r"^#+ (.+)$", documents.read(page), re.MULTILINE)
        assert headings == [f"{page.name[:4]}: {titles[page.name[:4]]}", "Context", "Decision", "Consequences"], page


def test_pictures_are_sound() -> None:
    for path in (ROOT / "docs" / "images").glob("*.svg"):
        root = ElementTree.parse(path).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.find("{http://www.w3.org/2000/svg}title") is not None


def test_the_chart_of_the_benchmark_shows_its_results() -> None:
    images = ROOT / "docs" / "images"
    outcomes = json.loads((images / "throughput.json").read_text())["outcomes"]
    drawn = (images / "throughput.svg").read_text()
    rates = [row["events/s"] for outcome in outcomes for row in outcome["rows"]]
    assert len(rates) >= 4
    assert all(f">{rate:,.0f}<" in drawn for rate in rates), "run python -m bench.chart"


def test_examples_are_short() -> None:
    examples = sorted((ROOT / "examples").glob("*.py"))
    assert len(examples) >= 4
    for path in examples:
        assert len(path.read_text().splitlines()) < EXAMPLE_LINES_MAX, path.name


# -- blocks of code


def test_programs_need_no_oslo_config_of_their_own() -> None:
    """One line opens what there is.  A driver is configured by such calls: the page about drivers may have them."""
    calls = re.compile(r"\b(?:set_override|register_opts)\(")
    texts = {str(block): block.text for block in documents.blocks("python") if "writing-a-driver" not in str(block)}
    texts |= {path.name: path.read_text() for path in (ROOT / "examples").glob("*.py")}
    assert [name for name, text in texts.items() if calls.search(text)] == []


def test_every_block_has_a_language_that_is_checked() -> None:
    assert {str(block): block.language for block in documents.blocks() if block.language not in LANGUAGES} == {}


@pytest.mark.parametrize("block", documents.blocks("sh"), ids=str)
def test_commands_are_understood(block: Block) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        check = {
            "heliograph": check_heliograph, "./run": check_run, "pip": check_pip, "spark-submit": check_spark_submit,
        }.get(words[0])  # fmt: skip
        assert check, f"{block}: nobody checks {words[0]}"
        check(words[1:])


def check_heliograph(words: list[str]) -> None:
    command.build_parser().parse_args(words)


def check_spark_submit(words: list[str]) -> None:
    """Its own settings, then a program, then the words of a command."""
    (program,) = [number for number, word in enumerate(words) if word.endswith(".py")]
    if words[program].startswith("local://"):
        assert words[program].removeprefix("local://") in documents.read("etc/container/Containerfile.spark")
    else:
        assert (ROOT / words[program]).is_file()
    check_heliograph(words[program + 1 :])


def check_run(words: list[str]) -> None:
    assert re.search(rf"^{words[0]}\)$", documents.read("run"), re.MULTILINE), words
    if words[0] == "bench":
        bench_cli._parse(words[1:])


def check_pip(words: list[str]) -> None:
    assert words[0] == "install"
    extras = re.fullmatch(r"\.\[([\w,]+)\]", words[1])
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert extras
    assert set(extras[1].split(",")) <= set(setup["options.extras_require"])


@pytest.fixture
def host(tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory with the key files that the configurations of the documentation name."""
    keys = tmp_path / "etc"
    (keys / "subscribers").mkdir(parents=True)
    zmq.auth.create_certificates(keys, "publishers")
    zmq.auth.create_certificates(keys / "subscribers", "controller-1")
    for file in (TLS).iterdir():
        shutil.copy(file, keys)
    return tmp_path


@pytest.mark.parametrize("block", [block for block in documents.blocks("ini") if "[options" not in block.text], ids=str)
def test_configurations_can_be_used(block: Block, host: pathlib.Path) -> None:
    text = block.text.replace("/etc/heliograph", f"{host}/etc").replace("/run/heliograph", str(host))
    file = host / "heliograph.conf"
    file.write_text(text)
    sections: dict[str, dict[str, list[str]]] = {}
    cfg.ConfigParser(str(file), sections).parse()
    for group, options in sections.items():
        for name in options if group != "DEFAULT" else ():  # those of oslo.log
            find_option(f"[{'pubsub' if group == config.OLD_GROUP else group}] {name}")
    conf = config.new_conf([file])
    if nb_api.config.GROUP in sections:
        nb_api.loading.build_db(conf=conf).close()
        return
    if durability_service.config.GROUP in sections:
        durability_service.config.register(conf)
        assert durability_service.config.service_settings(conf, node="n", incarnation=1).name_spaces
        return
    if durable_log.config.GROUP in sections:
        durable_log.loading.build_log(conf=conf).close()
        return
    assert loading.build_driver(conf).capabilities
    stated = sections.get("pubsub") or sections.get("df") or {}
    assert conf.pubsub.pub_sub_driver == stated.get("pub_sub_driver", ["zmq"])[0]
