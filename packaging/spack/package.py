# The recipe of Sublet for Spack 1.0 and later: put it into a repository of packages as packages/sublet/package.py.
from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class Sublet(Package):
    """Functions on leased cores of other machines, called within microseconds."""

    homepage = "https://github.com/sublet/sublet"
    git = "https://github.com/sublet/sublet.git"

    license("Apache-2.0")

    version("main", branch="main")
    version("@VERSION@", tag="v@VERSION@")

    variant("rdma", default=True, description="Calls over RDMA networks, by libfabric")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("rust@1.89:", type="build")
    depends_on("protobuf", type="build")
    # Its headers are compiled against. It is loaded at run time, so that it is found by LD_LIBRARY_PATH or the system's cache.
    depends_on("libfabric@1.9:", when="+rdma")

    def setup_build_environment(self, env):
        if self.spec.satisfies("+rdma"):
            env.append_flags("CFLAGS", self.spec["libfabric"].headers.include_flags)

    def setup_run_environment(self, env):
        if self.spec.satisfies("+rdma"):
            env.append_path("LD_LIBRARY_PATH", self.spec["libfabric"].libs.directories[0])

    def install(self, spec, prefix):
        Executable("cargo")("build", "--release", "--workspace", "--jobs", str(make_jobs))
        Executable("scripts/install.sh")(prefix)

    def test_version(self):
        """check that the command starts"""
        Executable(self.prefix.bin.sublet)("--version")
