# SPDX-License-Identifier: Apache-2.0
"""check.py: has rattler-build parse and render recipe.yaml for Linux on x86-64. Needs py-rattler-build of PyPI."""

import pathlib

from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe, VariantConfig

VARIANTS = {"c_compiler": ["gcc"], "cxx_compiler": ["gxx"], "c_stdlib": ["sysroot"], "c_stdlib_version": ["2.28"]}

recipe = Stage0Recipe.from_file(pathlib.Path(__file__).with_name("recipe.yaml"))
platform = PlatformConfig(target_platform="linux-64")
(rendered,) = recipe.render(VariantConfig(VARIANTS), RenderConfig(platform=platform))
made = rendered.recipe
print(made.package.name, made.package.version, made.requirements.build)
