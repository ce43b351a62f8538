# SPDX-License-Identifier: Apache-2.0
"""Conan's recipe of the library for CPUs, from the source tree that it is in."""

import pathlib
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy
from conan.tools.layout import basic_layout
from conan.tools.meson import Meson, MesonToolchain

SOURCES = "api", "bindings", "doc", "examples", "packaging", "src", "tests"


class AnnulusConan(ConanFile):
    name = "annulus"
    license = "Apache-2.0"
    description = "Dilated attention over sequences of any length"
    topics = "attention", "longnet", "dilated-attention", "sparse-attention"
    package_type = "shared-library"
    settings = "os", "arch", "compiler", "build_type"

    def set_version(self):
        meson_build = pathlib.Path(self.recipe_folder, "../../meson.build").read_text()
        self.version = re.search(r"^  version: '(.*)',$", meson_build, re.MULTILINE)[1]

    def export_sources(self):
        root = pathlib.Path(self.recipe_folder).parents[1]
        for pattern in ("LICENSE", "meson.build", "meson_options.txt", *(f"{name}/*" for name in SOURCES)):
            copy(self, pattern, root, self.export_sources_folder, excludes="*__pycache__*")

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration(f"annulus is for Linux, not {self.settings.os}")
        check_min_cppstd(self, 20)

    def build_requirements(self):
        self.tool_requires("meson/[>=1.0.1]")

    def layout(self):
        basic_layout(self)

    def generate(self):
        toolchain = MesonToolchain(self)
        toolchain.project_options["default_library"] = "shared"
        for feature in "cli", "cuda", "doc", "jax", "mpi", "python", "tests":
            toolchain.project_options[feature] = "disabled"
        toolchain.generate()

    def build(self):
        meson = Meson(self)
        meson.configure()
        meson.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, pathlib.Path(self.package_folder, "licenses"))
        Meson(self).install()

    def package_info(self):
        self.cpp_info.libs = ["annulus"]
        self.cpp_info.set_property("cmake_file_name", "annulus")
        self.cpp_info.set_property("cmake_target_name", "annulus::annulus")
        self.cpp_info.set_property("pkg_config_name", "annulus")
