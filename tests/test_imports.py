"""What starts without torch, which takes seconds to import."""

import subprocess
import sys

import pytest

PROGRAMS = {
    "hcfl --help": "from hcfl.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
    "hcfl run --help": "from hcfl.cli import main\ntry: main(['run', '--help'])\nexcept SystemExit: pass",
    "hcfl scenarios, by name": "from hcfl.config import scenarios\nscenarios.names()",
    "the configuration": "import hcfl.config\nhcfl.config.Config()",
    "readers": "import hcfl.data.readers.cache, hcfl.data.readers.image_folder, hcfl.data.readers.parallel",
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_starts_without_torch(program):
    code = f"{program}\nimport sys\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
