"""The `markstep` command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import markstep
from markstep import cli, launch


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"markstep {markstep.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["run"], "script"),
        (["run", "nowhere/train.py"], "there is no file nowhere/train.py in"),
        (["run", "."], "is a folder: name the Python file"),
        (["dance"], "invalid choice: 'dance'"),
    ],
)
def test_wrong_use(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_run_passes_the_arguments_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    called: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(launch, "run_script", lambda path, args: called.append((path, args)))
    assert cli.main(["run", str(script), "--lr", "1e-3", "--version", "data"]) == 0
    assert called == [(str(script), ["--lr", "1e-3", "--version", "data"])]


def test_run_keeps_the_exit_status_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint(sys.argv[1:])\nsys.exit(7)\n")
    code = "import sys; from markstep.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", str(script), "-x"], env=_environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (7, "['-x']\n")


def test_run_seeds_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys, torch\nprint(torch.initial_seed(), sys.argv[1:])\n")
    command = [sys.executable, "-m", "markstep", "run", "--seed", "3", str(script), "--seed", "4"]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "3 ['--seed', '4']\n")


def test_env_names_what_a_bug_report_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MARKSTEP_BACKEND", "interpreter")
    monkeypatch.setenv("MARKSTEP_CACHE_DIR", str(tmp_path))
    assert cli.main(["env"]) == 0
    out = capsys.readouterr().out
    for part in ("torch ", "processor ", "threads ", "compiler ", "backend=interpreter", f"cache_dir={tmp_path}"):
        assert part in out
    assert "MARKSTEP_BACKEND=interpreter" in out


def test_env_survives_wrong_settings(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARKSTEP_BACKEND", "magic")
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert cli.main(["env"]) == 0
    out = capsys.readouterr().out
    assert "wrong: backend='magic'" in out
    assert "/nowhere/g++: does not run" in out


def test_bench_outside_of_a_checkout(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "site-packages" / "markstep" / "cli.py"))
    assert cli.main(["bench", "--suite", "quick"]) == 2
    assert "pip install -e" in capsys.readouterr().err


def test_bench_takes_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "--help"])
    assert ended.value.code == 0
    assert "--contenders" in capsys.readouterr().out


def _environment() -> dict[str, str]:
    """Of a child that finds this Markstep, and compiles nothing."""
    source = str(Path(markstep.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": source, "MARKSTEP": "0"}
