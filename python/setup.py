"""Takes the version from gen/gen.h, and into the wheel what a source tree has built: build/carry/libfagen.so, which needs
nothing but libc, and the library of specs. Without a build the wheel has no library, and looks for an installed libfagen.so.0."""
import pathlib
import re
import shutil

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "build" / "carry" / "libfagen.so"


class Build(build_py):
    def run(self):
        super().run()
        to = pathlib.Path(self.build_lib) / "fagen"
        if LIBRARY.exists():
            (to / "lib").mkdir(parents=True, exist_ok=True)
            shutil.copy2(LIBRARY, to / "lib")
        shutil.copytree(ROOT / "specs", to / "specs", dirs_exist_ok=True)


class Wheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = not LIBRARY.exists()

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


version = re.search(r'FAGEN_VERSION "(.*)"', (ROOT / "gen" / "gen.h").read_text())[1]
work = ROOT / "build" / "python" / "wheel"  # not in the sources
shutil.rmtree(work, ignore_errors=True)
work.mkdir(parents=True)
setup(version=version, cmdclass={"build_py": Build, "bdist_wheel": Wheel},
      options={"build": {"build_base": str(work)}, "egg_info": {"egg_base": str(work)}})
