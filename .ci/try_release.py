"""Check the files in dist/ as a user will meet them: `make release` runs this after the build.

The wheel must hold every file of src/hcfl and carry the version of CITATION.cff. It is then installed into an empty
environment, with the versions of constraints.txt, and `hcfl demo` runs from it in an empty folder.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Raise SystemExit with one sentence where a check fails."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    wheel = ROOT / "dist" / f"hcfl-{version}-py3-none-any.whl"
    if not wheel.is_file():
        raise SystemExit(f"{wheel}: was not built")
    check_version(version)
    print(f"{wheel.name}: holds all {check_contents(wheel)} files of src/hcfl")
    with tempfile.TemporaryDirectory(prefix="hcfl-release-") as folder:
        run_demo(wheel, version, Path(folder))


def check_version(version: str) -> None:
    """Check that the citation and the changelog know the version."""
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    if cited is None or cited[1] != version:
        raise SystemExit(f"CITATION.cff: must have the version of pyproject.toml, {version}")
    if f"\n## [{version}]" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        raise SystemExit(f"CHANGELOG.md: must have a section [{version}]")


def check_contents(wheel: Path) -> int:
    """Check that no source or data file is missing from the wheel; return how many there are."""
    files = (path for path in (ROOT / "src" / "hcfl").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    wanted = {path.relative_to(ROOT / "src").as_posix() for path in files}
    with zipfile.ZipFile(wheel) as archive:
        missing = sorted(wanted - set(archive.namelist()))
    if missing:
        raise SystemExit(f"{wheel.name}: lacks {', '.join(missing)}")
    return len(wanted)


def run_demo(wheel: Path, version: str, folder: Path) -> None:
    """Install the wheel into an empty environment and run the demo from it, away from the repository."""
    venv.create(folder / "venv", with_pip=True)
    bin_ = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def call(*command: str | Path) -> str:
        print("+", *command, flush=True)
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"{done.stdout}\nfailed with code {done.returncode}")
        return done.stdout

    call(bin_ / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel)
    found = call(bin_ / "hcfl", "--version").split()[-1]
    if found != version:
        raise SystemExit(f"the installed wheel says version {found}, not {version}")
    print(call(bin_ / "hcfl", "demo"))
    if not list(folder.glob("runs/*/report.html")):
        raise SystemExit("hcfl demo wrote no report")


if __name__ == "__main__":
    sys.exit(main())
