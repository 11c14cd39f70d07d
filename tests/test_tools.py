"""The scripts in tools/, short of running them: they take minutes, and set up environments."""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ("tools/azurite", "tools/demo", "tools/docs", "tools/test", ".ci/run", ".ci/versions")
BASH = shutil.which("bash") or "bash"


@pytest.fixture
def parts(monkeypatch):
    """The demonstration's modules, which are no part of any installation."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    from demo_parts import evidence, journal, report, resumer, training

    yield types.SimpleNamespace(
        evidence=evidence, journal=journal, report=report, resumer=resumer, training=training
    )
    for name in [name for name in sys.modules if name.split(".")[0] == "demo_parts"]:
        del sys.modules[name]


def bash(script, **environment):
    """Run some lines of bash with nothing else in the environment."""
    return subprocess.run(
        [BASH, "-c", script], env={"PATH": "/usr/bin:/bin", **environment}, cwd="/",
        capture_output=True, text=True, check=False,
    )  # fmt: skip


# -- the scripts


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_executable(script):
    assert os.access(ROOT / script, os.X_OK)


@pytest.mark.parametrize("script", [*SCRIPTS, "tools/setup.sh"])
def test_scripts_parse(script):
    checked = subprocess.run([BASH, "-n", str(ROOT / script)], capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, b"")


@pytest.fixture
def clone(tmp_path):
    """A repository with a pretended environment: its pip writes down what it is asked for."""
    for name in ("tools/setup.sh", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = -m ] || exit 0\n'
        f'echo "$@" >>"{tmp_path}/asked"\n'
        f'[ ! -e "{tmp_path}/broken" ] || {{ echo no such package; exit 1; }}\n'
    )
    python.chmod(0o755)
    return tmp_path


def set_up(clone, *extras):
    return bash(f'set -euo pipefail; source "{clone}/tools/setup.sh"; set_up {" ".join(extras)}')


def asked(clone):
    """The extras that pip was asked for, for each time it was called."""
    path = clone / "asked"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.rpartition("[")[2].rstrip("]") for line in lines]


def test_set_up_installs_when_something_changed_only(clone):
    for _ in range(2):
        assert set_up(clone, "atari").returncode == 0
    assert asked(clone) == ["atari"]
    for extras in (["test", "atari"], ["atari"], ["test"]):
        assert set_up(clone, *extras).returncode == 0
    assert asked(clone) == ["atari", "atari,test"]
    with (clone / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert set_up(clone, "test").returncode == 0
    assert asked(clone) == ["atari", "atari,test", "atari,test"]


def test_set_up_is_quiet_when_there_is_nothing_to_do(clone):
    set_up(clone, "atari")
    done = set_up(clone, "atari")
    assert (done.stdout, done.stderr) == ("", "")


def test_set_up_tells_why_an_installation_failed_and_tries_again(clone):
    (clone / "broken").touch()
    failed = set_up(clone, "atari")
    assert failed.returncode == 2
    assert "no such package" in failed.stderr
    (clone / "broken").unlink()
    assert set_up(clone, "atari").returncode == 0
    assert len(asked(clone)) == 2


def test_set_up_without_a_python_says_what_is_needed(clone):
    shutil.rmtree(clone / ".venv")
    tools = clone / "bin"
    tools.mkdir()
    for name in ("bash", "cksum", "dirname", "head"):
        (tools / name).symlink_to(shutil.which(name))
    failed = bash(f'source "{clone}/tools/setup.sh"; set_up test', PATH=str(tools))
    assert failed.returncode == 2
    assert "Python 3.11 or later" in failed.stderr
    assert "no python3 was found" in failed.stderr


@pytest.fixture
def versions(clone):
    """`.ci/versions` in a clone, as a function. Of the Pythons 3.11, 3.13 and 3.98 are there,
    pretended ones, with their environments. `fails`: commands of uv that fail. Also returned: what
    each environment ran its tests with. A file `failing` in one makes them fail."""
    (clone / ".ci").mkdir()
    for name in ("constraints.txt", "versions"):
        shutil.copy(ROOT / ".ci" / name, clone / ".ci" / name)
    assert set_up(clone, "dev").returncode == 0
    python = clone / ".venv/bin/python"
    python.write_text(
        f"""#!/bin/sh
        while read -r broken; do case "$*" in *"$broken"*) exit 1 ;; esac; done <"{clone}/fails"
        case "$*" in *"pip sync"*) ! rm "{clone}/slow" 2>/dev/null ;; esac
        """
    )
    passes = [
        f"{version}-{name}" for version, names in
        {"3.11": ["lowest", "lowest-gymnasium", "lowest-sb3", "lowest-minari", "lowest-tianshou"],
         "3.13": ["newest"], "3.98": ["newest"]}.items() for name in names
    ]  # fmt: skip
    for each in passes:
        (clone / "bin").mkdir(exist_ok=True)
        base = clone / "bin" / f"python{each.split('-')[0]}"
        base.write_text("#!/bin/sh\n")
        base.chmod(0o755)
        inner = clone / f".venv-{each}/bin/python"
        inner.parent.mkdir(parents=True)
        inner.write_text(
            f"""#!/bin/sh
            case "$1" in
                */tests/versions.py) echo "tests/test_one.py tests/two" ;;
                -m)
                    echo "{each} ${{HYPOTHESIS_PROFILE:-as set}} $*" >>"{clone}/ran"
                    echo "== 3 passed in 1s =="
                    [ ! -e "{clone}/.venv-{each}/failing" ] ;;
            esac
            """
        )
        inner.chmod(0o755)

    def run(*arguments, fails=()):
        (clone / "fails").write_text("".join(f"{command}\n" for command in fails))
        (clone / "ran").write_text("")
        done = bash(
            f'"{clone}/.ci/versions" {" ".join(arguments)}',
            PATH=f"{clone}/bin:/usr/bin:/bin", PIP_FIND_LINKS="/nowhere", PYENV_ROOT="/nowhere",
        )  # fmt: skip
        return done, (clone / "ran").read_text().splitlines()

    return run


def test_versions_names_pythons_that_are_not_there(versions):
    """And fails for none of them: but that nothing was tested can be told."""
    done, ran = versions("--quick", "3.99", "3.97")
    said = "Python {} is not there: nothing was tested with it.\n".format
    assert (done.stdout, done.stderr, ran) == (said("3.99") + said("3.97"), "", [])
    assert done.returncode == 3
    done, ran = versions("3.99", "3.13")
    assert done.stdout == said("3.99") + "Python 3.13, newest:  3 passed in 1s \n"
    assert (done.returncode, len(ran)) == (0, 1)


@pytest.mark.parametrize("quick", [False, True])
def test_versions_runs_all_tests_or_those_that_stand_on_other_packages(versions, quick):
    done, ran = versions(*["--quick"] * quick, "3.11", "3.13")
    assert done.returncode == 0, done.stderr
    ran = {line.split()[0]: line for line in ran}
    minor = {"3.11-lowest-minari", "3.11-lowest-tianshou"}
    assert set(ran) == (set() if quick else minor) | {
        "3.11-lowest", "3.11-lowest-gymnasium", "3.11-lowest-sb3", "3.13-newest"
    }  # fmt: skip
    for each in ("3.11-lowest", "3.13-newest"):
        assert ran[each].endswith(" tests/test_one.py tests/two") == quick
        assert f"{each} same " in ran[each] if quick else f"{each} as set " in ran[each]
    assert "tests/test_smoke.py" in ran["3.11-lowest-gymnasium"]


def test_versions_fails_where_tests_fail(versions, clone):
    (clone / ".venv-3.11-lowest/failing").touch()
    done, ran = versions("--quick", "3.11", "3.13")
    assert done.returncode == 1
    assert "Python 3.11, lowest: the tests fail" in done.stderr
    assert len(ran) == 4  # the others run nevertheless


@pytest.mark.parametrize("version", ["3.11", "3.13", "3.98"])
def test_versions_without_an_index_fails_for_none(versions, version):
    """Whether it cannot be reached from the start, or no longer when an environment is made."""
    said = "nothing was tested, since no package index can be reached.\n"
    done, ran = versions("--quick", version, fails=["pip compile"])
    assert (done.stdout, done.stderr, ran) == (f"Python {version}: {said}", "", [])
    assert done.returncode == 3


def test_versions_asks_twice_for_what_it_needs(versions, clone):
    (clone / "slow").touch()
    done, ran = versions("--quick", "3.13")
    assert (done.returncode, done.stderr, len(ran)) == (0, "", 1)
    assert not (clone / "slow").exists()


@pytest.mark.parametrize("command", ["pip compile --resolution", "pip sync", "pip install"])
def test_versions_that_cannot_be_had_are_a_failure_on_a_declared_python(versions, command):
    done, ran = versions("--quick", "3.13", fails=[command])
    assert done.returncode == 1
    assert (done.stdout, ran) == ("", [])
    assert done.stderr == "Python 3.13, newest: no environment could be made\n"
    done, ran = versions("--quick", "3.98", fails=[command])
    assert (done.returncode, ran) == (3, [])
    assert "Python 3.98, newest: nothing was tested, since what is needed" in done.stdout


def run_all(clone, *arguments):
    """`.ci/run` in a clone, where it finds a browser: root would install one for this machine."""
    (clone / "bin").mkdir(exist_ok=True)
    (clone / "bin/chromedriver").write_text("#!/bin/sh\n")
    (clone / "bin/chromedriver").chmod(0o755)
    return bash(f'"{clone}/.ci/run" {" ".join(arguments)}', PATH=f"{clone}/bin:/usr/bin:/bin")


@pytest.mark.costly(6)
@pytest.mark.parametrize("tests", [0, 1])
@pytest.mark.parametrize("theirs", [0, 1])
@pytest.mark.parametrize("clusters", [0, 1, 5])
@pytest.mark.parametrize("versions", [0, 1, 3])
def test_run_ends_with_the_closing_lines_of_its_passes(clone, tests, clusters, theirs, versions):
    azurite = versions  # these run only where pytest's arguments do not say what to run
    (clone / ".ci").mkdir()
    (clone / "tools/frameworks").mkdir()
    shutil.copy(ROOT / ".ci/run", clone / ".ci/run")
    for name, said, code in (
        ("tools/azurite", "Azurite cannot be had", azurite),
        ("tools/docs", "build/site/index.html", 0),
        ("tools/frameworks/sb3", "SB3's own tests", theirs),
        ("tools/frameworks/torchrl", "torchrl's own tests", 3 if theirs else 0),
        (".ci/versions", "Python 3.13, newest: 3 passed in 1s", versions),
    ):
        (clone / name).write_text(f'#!/bin/sh\necho "{said}"; exit {code}\n')
        (clone / name).chmod(0o755)
    (clone / "tools/test").write_text(
        f"""#!/bin/sh
        case "$*" in
            *"-m not cluster") echo "a dot\n3 passed in 1s"; exit {tests} ;;
            *"-m cluster -n 2 "*) echo "a slow dot\n2 passed in 9s"; exit {clusters} ;;
        esac
        """
    )
    (clone / "tools/test").chmod(0o755)
    dots = ["Azurite cannot be had", "a dot", "a slow dot"]
    lines = ["2 passed in 9s", "3 passed in 1s"]
    if clusters == 5:  # pytest's code where it was to run none
        del lines[0]
    code = tests or clusters % 5
    done = run_all(clone)
    others = ["SB3's own tests", "torchrl's own tests", "Python 3.13, newest: 3 passed in 1s"]
    assert done.stdout.splitlines() == [*dots, *others, *lines]
    assert done.returncode == (code or theirs or versions % 3), done.stderr
    some = run_all(clone, "tests/test_kill.py")
    assert some.stdout.splitlines() == [*dots, *lines]
    assert some.returncode == (code or azurite % 3)


def test_run_fails_where_no_test_was_chosen(clone):
    (clone / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", clone / ".ci/run")
    for name in ("tools/azurite", "tools/docs", "tools/test"):
        (clone / name).write_text(f"#!/bin/sh\nexit {5 if name == 'tools/test' else 0}\n")
        (clone / name).chmod(0o755)
    done = run_all(clone, "tests/test_none.py")
    assert done.returncode == 1
    assert done.stderr.endswith("\nNo test was chosen.\n")


UNIGNORED = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("amid", ["the site", "the tests"])
def test_run_that_is_ended_leaves_no_process(clone, amid, number):
    """As a terminal does it: Ctrl-C is for the process group in the foreground. What ran beside it
    went on, and so did what that had started."""
    (clone / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", clone / ".ci/run")
    os.mkfifo(clone / "running")  # held open by all of them: its end is seen when the last one ends
    here = f"exec 9>'{clone}/running'; printf . >&9; exec sleep 1000"
    below = f"({here}) & wait"  # which ignores Ctrl-C
    for name, does in (
        ("tools/azurite", here if amid == "the site" else "true"),
        ("tools/docs", below if amid == "the site" else "true"),
        ("tools/test", f'case "$*" in *" -m cluster "*) {below} ;; *) {here} ;; esac'),
        ("bin/chromedriver", "true"),
    ):
        (clone / name).parent.mkdir(exist_ok=True)
        (clone / name).write_text(f"#!/bin/sh\n{does}\n")
        (clone / name).chmod(0o755)
    # A signal that the tests were told to ignore, as `nohup` does, a shell could not handle.
    run = subprocess.Popen(
        [sys.executable, "-c", UNIGNORED, clone / ".ci/run", "tests/test_none.py"],
        start_new_session=True, env={"PATH": f"{clone}/bin:/usr/bin:/bin", "TMPDIR": str(clone)},
    )  # fmt: skip
    try:
        with open(clone / "running", "rb", buffering=0) as file:
            for _ in range(2):  # one in the foreground, and one beside it
                assert file.read(1) == b"."
            os.killpg(run.pid, number)
            assert run.wait(600) != 0
            assert select.select([file], [], [], 60)[0], "something is still running"
            assert file.read(1) == b""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    assert not list(clone.glob("tmp.*"))


# -- what the demonstration judges by


def make_rows(count, *, final=()):
    """Rows as zarr-python reads them; those of `final` are final rows."""
    is_final = np.isin(np.arange(count), final)
    return {
        "observation": np.arange(count * 4, dtype=np.uint8).reshape(count, 2, 2),
        "action": np.where(is_final, 0, np.arange(count) % 6),
        "reward": np.where(is_final, 0, 0.5).astype(np.float32),
        "terminated": np.isin(np.arange(count), np.array(final, int) - 1),
        "truncated": np.zeros(count, bool),
        "is_final": is_final,
    }


def as_group(rows):
    return {name: values[:, None] for name, values in rows.items()}


@pytest.fixture
def run(parts):
    """Seven rows, two of them final ones, and the journal of the process that added them."""
    rows = make_rows(7, final=[3, 6])
    journal = parts.journal.Journal()
    journal.rows = dict(enumerate(parts.evidence.row_checksums(rows)))
    return rows, journal


def compare(parts, rows, journal, stored=7):
    return parts.evidence.compare_rows(as_group(rows), stored, journal, lambda _: None)


def test_rows_that_are_there_are_found(parts, run):
    found = compare(parts, *run)
    assert (found.missing, found.different, found.unacknowledged) == (0, 0, 0)
    assert found.holds


def test_lost_rows_are_noticed(parts, run):
    found = compare(parts, *run, stored=6)
    assert (found.missing, found.different) == (1, 0)
    assert not found.holds


@pytest.mark.parametrize("field", ["observation", "action", "reward", "terminated", "is_final"])
def test_changed_rows_are_noticed(parts, run, field):
    rows, journal = run
    value = rows[field].reshape(7, -1)
    value[4, 0] = not value[4, 0] if value.dtype == bool else value[4, 0] + 1
    found = compare(parts, rows, journal)
    assert (found.missing, found.different) == (0, 1)
    assert not found.holds


def test_one_add_may_lack_its_acknowledgement(parts, run):
    rows, journal = run
    del journal.rows[5], journal.rows[6]
    assert compare(parts, rows, journal).holds
    del journal.rows[4]
    assert not compare(parts, rows, journal).holds


@pytest.mark.parametrize(
    ("resumed", "compared", "different"),
    [
        ({8: 1, 12: 2, 16: 3}, 2, 0),
        ({8: 1, 12: 9}, 2, 1),
        ({8: 1}, 2, 1),  # a batch that was not drawn
    ],
)
def test_batches_are_compared_from_the_save_on(parts, resumed, compared, different):
    journals = parts.journal.Journal(), parts.journal.Journal()
    journals[0].batches, journals[1].batches = {4: 0, 8: 1, 12: 2}, resumed
    found = parts.evidence.compare_batches(*journals, suffix=1, since=8)
    assert (found.compared, found.different, found.added) == (compared, different, 4)
    assert found.holds == (not different)


def test_no_batches_prove_nothing(parts):
    journals = parts.journal.Journal(), parts.journal.Journal()
    assert not parts.evidence.compare_batches(*journals, suffix=1, since=8).holds


def test_steps_are_made_of_rows_again(parts):
    rows = make_rows(7, final=[3, 6])
    steps = list(parts.resumer.steps_of(rows))
    assert len(steps) == 5
    assert [step.terminated for step in steps] == [False, False, True, False, True]
    assert [step.next_observation is not None for step in steps] == [s.terminated for s in steps]
    np.testing.assert_array_equal(steps[2].next_observation, rows["observation"][3])
    np.testing.assert_array_equal(steps[3].observation, rows["observation"][4])


def test_a_journal_takes_any_cut(parts):
    reading, writing = os.pipe()
    kind, record = parts.journal.Kind, parts.journal.Record
    report = parts.journal.Reporter(writing)
    report(record(kind.READY, 0, 0, 0.25, 0))
    report(record(kind.ROW, 17, 0, 1e-6, 0), record(kind.FINAL, 2**32 - 1, 1, 0, 0))
    report(record(kind.BATCH, 5, 4, 2e-4, 1e-5))
    report(record(kind.SAVED, 0, 3, 0.5, 0), record(kind.DONE, 0, 0, 0, 0))
    os.close(writing)
    with open(reading, "rb") as file:
        data = file.read()
    journal = parts.journal.Journal()
    for start in range(0, len(data), 5):
        journal.feed(data[start : start + 5])
    assert journal.rows == {0: 17, 1: 2**32 - 1}
    assert journal.batches == {4: 5}
    assert (journal.frames, journal.last_saved, journal.done) == (1, 3, True)


def test_training_is_the_same_whenever_it_is_cut(parts, tmp_path, monkeypatch):
    """The demonstration's twin in small: recorded in one go, and resumed after the first save."""
    for name, value in (("LEARN_FROM", 8), ("SAVE_EVERY", 16), ("SHAPE", (2, 2))):
        monkeypatch.setattr(parts.training, name, value)
    rows = make_rows(40, final=[13, 30])
    journals = [parts.journal.Journal(), parts.journal.Journal()]

    def train(buffer, steps, number):
        reading, writing = os.pipe()
        parts.training.train(
            buffer, steps, parts.journal.Reporter(writing), tmp_path / f"checkpoints-{number}"
        )
        os.close(writing)
        with open(reading, "rb") as file:
            journals[number].feed(file.read())

    steps = list(parts.resumer.steps_of(rows))
    with parts.training.make_buffer(tmp_path / "replay") as buffer:
        train(buffer, steps, 0)
        buffer.load(tmp_path / "checkpoints-0", 1, resume_episodes=True)
        train(buffer, steps[16:], 1)
    found = parts.evidence.compare_batches(*journals, suffix=1, since=16)
    assert found.compared == 6
    assert found.holds


@pytest.mark.costly(1)
@pytest.mark.parametrize("spoiled", [None, "missing", "different", "more"])
def test_every_row_of_actors_is_compared(parts, tmp_path, monkeypatch, spoiled):
    """`tools/demo --machines` in small, without its cluster: two shards, a writer for each."""
    from demo_parts import players

    monkeypatch.setattr(parts.training, "SHAPE", (2, 2))
    rows, played, stores = make_rows(40, final=[13, 30]), [], []
    for shard in range(2):
        stores.append(tmp_path / f"store{shard}")
        with diskreplay.ReplayBuffer(
            stores[-1], num_envs=2, capacity=None, action_space=Discrete(6),
            observation_space=Box(0, 255, (2, 2), "uint8"),
        ) as buffer:  # fmt: skip
            stop, steps = tmp_path / f"stop{shard}", list(parts.resumer.steps_of(rows))

            def game(env, stop=stop, steps=steps):
                for number, step in enumerate(steps):
                    if number == 20 and env == 1:
                        stop.touch()
                    yield step._replace(
                        observation=step.observation + env,
                        next_observation=step.observation if step.next_observation is None
                        else step.next_observation,
                    )  # fmt: skip

            writer = types.SimpleNamespace(
                num_envs=2, shard=shard, _envs=np.arange(2), add=buffer.add, close=buffer.flush
            )
            found = players.play(writer, 0, stop, [game(env) for env in range(2)])
            assert (found.shard, found.envs) == (shard, [0, 1])
            played += found.rows
    assert [len(mine) for mine in played] == [22] * 4  # 21 steps, and one final row
    if spoiled == "missing":
        played[2].append(1)
    elif spoiled == "different":
        played[3][5] ^= 1
    elif spoiled == "more":
        played[0].pop()
    found = players.compare(stores, played)
    assert found.rows == 88 + (spoiled == "missing") - (spoiled == "more")
    assert found.holds == (spoiled is None)
    for name in ("missing", "different", "more"):
        assert getattr(found, name) == (spoiled == name)


# -- what the reader sees


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (223_500_000, "223.5 MB"), (7e9, "7.00 GB")]
)
def test_sizes(parts, count, shown):
    assert parts.report.size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(2e-6, "2 us"), (0.0012, "1.2 ms"), (0.025, "25 ms"), (0.71, "710 ms"), (1.25, "1.2 s")],
)
def test_durations(parts, seconds, shown):
    assert parts.report.duration(seconds) == shown
