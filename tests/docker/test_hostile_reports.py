"""Images that attack whoever reads the reports of their simulated cards.

Nothing of this machine is shown, nothing is left on it, and it neither waits for ever nor fills its
memory: each server runs Perl, as the image's user and as root.
"""

from __future__ import annotations

import resource
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.checks.device import check_device
from builder.checks.subject import DeviceTest
from builder.checks.verdict import Check, timed
from builder.docker.containers import blobs_of
from builder.image import contents as reading
from builder.image.contents import Contents
from builder.presets import cards
from simulator.receiver import DRAIN
from support.environment import REPOSITORY, SHARED_CACHE
from support.shaped_card import recipe_of
from support.smoke_tests import context_of, docker

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

IMAGE = "builder-test/hostile:reports"
SECRET = "the secret of this machine"
# `place` is /simulator/report; a connection is kept open until the program ends.
PROGRAM = r"""
use strict; use Socket;
our ($place, $secret, @kept) = ("/simulator/report", $ENV{SECRET});
sub raw {
    socket(my $stream, AF_UNIX, SOCK_STREAM, 0) or die;
    connect($stream, sockaddr_un($place)) or return 0;
    push @kept, $stream;
    for my $text (@_) { defined send($stream, $text, 0x4000) or return 0 }
    return 1;
}
sub report { my ($process, $json) = @_; raw("$process " . length($json) . "\n$json") }
eval $ENV{ATTACK}; print "$@";
"""
ONE = (
    '{"version": 1, "called": {"cudaMalloc": 1}, "stacks": [["x"]], "cards": [{"name": "C", '
    '"memory": 9, "context": 1, "used": 1, "peak": 1}], "allocations": [{"stack": 0, "card": CARD, '
    '"function": "f", "count": 1, "live": 1, "at_peak": 1, "largest": 1}]}'
)
# Perl, as if the place of the report were a directory.
FILES = {
    "a link to a file": """symlink($secret, "$place/9.json")""",
    "a link in its place": """unlink $place; rename $place, "$place~"; symlink $secret, $place""",
    "a link to zeros": """symlink("/dev/zero", "$place/9.json")""",
    "a pipe": """system("mkfifo", "$place/9.json")""",
    "a device": """system("mknod", "$place/9.json", "c", "1", "5")""",
    "a directory": """mkdir "$place/9.json"; mkdir "$place/deep", 0""",
    "a program of root's": """open(F, ">", "$place/9"); chmod 04777, "$place/9"; chmod 0, $place""",
    "a hard link": """link("/simulator/config/cards", "$place/9.json"); link($place, "/tmp/x")""",
    "a disk full of files": """for (1 .. 1e5) { open(F, ">", "$place/$_.json") or last }""",
}
# Perl, and a part of what the check says.
MESSAGES = {
    "a card that is not there": (
        f"""my $json = q({ONE}); $json =~ s/CARD/9/; report(1, $json)""",
        "names a card that it does not have",
    ),
    "numbers": (
        """report(1, '{"version": 1, "cards": [{"memory": 1e400, "peak": -1}]}')""",
        "cards: Field required",
    ),
    "nesting": ("""report(1, "[" x 1e6)""", "recursion limit"),
    "no report": ("""report(1, "root:x:0:0")""", "Invalid JSON"),
    "many faults": (
        """report(1, '{"version": 1, "stacks": [' . ("[1]," x 1e6) . "[]]}")""",
        "stacks: Input should be a valid string",
    ),
    "too long": ("""raw("1 99999999\n"); raw("x" x 1e6)""", "more than 4 MiB at once"),
    "many processes": ("""report($_, "{}") or last for (1 .. 1e6)""", "more than 256 processes"),
    "unfinished": (
        """raw("$_ 4000000\n", "x" x 3e6) or last for (1 .. 100)""",
        "16 MiB in all",
    ),
    "garbage": ("""raw("x" x 1e3)""", "no message of the simulator"),
}
Attack = Callable[..., dict[str, Check]]


@pytest.fixture(scope="module")
def contents(cuda_base: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Contents:
    work = tmp_path_factory.mktemp("contents")
    return reading.read_contents(blobs_of(cuda_base["runtime"], work), work, cache=SHARED_CACHE)


@pytest.fixture(scope="module", params=["10001:10001", "0:0"], ids=["user", "root"])
def hostile(cuda_base: dict[str, str], made: set[str], request: pytest.FixtureRequest) -> str:
    """The name of the image."""
    name = f"{IMAGE}-{request.param.partition(':')[0]}"
    made.add(name)
    program = f"FROM scratch\nCOPY <<'END' /attack.pl\n{PROGRAM}\nEND\n"
    dockerfile = program.replace("FROM scratch", f"FROM {cuda_base['runtime']}")
    dockerfile += f'USER {request.param}\nENTRYPOINT ["perl", "/attack.pl"]\n'
    docker("buildx", "build", "--provenance=false", f"--tag={name}", "-", text=dockerfile)
    return name


@pytest.fixture
def attack(
    hostile: str, cuda_base: dict[str, str], contents: Contents, tmp_path: Path
) -> Iterator[Attack]:
    """The checks of a server that attacks, by subject; nothing of it is left."""
    device = DeviceTest(cards.load(REPOSITORY, "5060-ti-16gb"), SHARED_CACHE, lambda _: None)
    work, secret = tmp_path / "device", tmp_path / "secret"
    secret.write_text(SECRET)

    def run(program: str, seconds: int = 20) -> dict[str, Check]:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        recipe = recipe_of({"ATTACK": program, "SECRET": str(secret)})
        serve = recipe.serve
        assert serve is not None
        recipe = recipe.model_copy(update={"serve": serve.model_copy(update={"seconds": seconds})})
        more = {"devel": cuda_base["devel"], "device_test": device}
        found = [*timed(check_device(context_of(contents, recipe, tmp_path, hostile, **more)))]
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10  # KiB
        return {each.subject: each for each in found}

    yield run
    left = {path.relative_to(work): path.lstat() for path in work.rglob("*")}
    assert not any(found.st_mode & (stat.S_ISUID | stat.S_ISGID) for found in left.values())
    made = {"tiny.gguf", "simulator", "simulator/config", "simulator/report"}
    made |= {"simulator/config/cards", "simulator/config/code"}
    assert {*map(str, left)} == made
    shutil.rmtree(work)


@pytest.mark.parametrize("name", FILES)
def test_there_is_no_directory_to_leave_anything_in(attack: Attack, name: str) -> None:
    found = attack(FILES[name])
    assert set(found) == {"starts"}, found
    assert found["starts"].state == "failed"
    assert "ended with exit status 0" in found["starts"].found
    assert SECRET not in str(found)
    assert "root:" not in str(found)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_that_is_no_report_says_nothing_of_the_image(attack: Attack, name: str) -> None:
    program, why = MESSAGES[name]
    found = attack(program)
    (check,) = (each for each in found.values() if each.state == "untried")
    assert why in check.found
    assert "root:x" not in check.found
    assert len(check.found) < 600


def test_an_endless_stream_ends_with_the_time_of_the_server(attack: Attack) -> None:
    program = 'while (1) { report(1, "{}"); @kept = () }'
    found = attack(program, seconds=3)
    assert found["starts"].state == "failed"
    assert found["starts"].seconds < 3 + 4 * DRAIN


def test_connections_that_are_kept_open_end_with_the_time_of_the_server(attack: Attack) -> None:
    found = attack("raw() for (1 .. 60); sleep 60", seconds=3)
    assert found["starts"].state == "failed"
