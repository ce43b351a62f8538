// SPDX-License-Identifier: Apache-2.0
//! Tells the linker where libannulus is: in the directory ANNULUS_LIB_DIR if that is set, else in the directory that
//! pkg-config names, else in the linker's own directories.

use std::env;
use std::process::Command;

fn library_directory() -> Option<String> {
    if let Ok(directory) = env::var("ANNULUS_LIB_DIR") {
        return Some(directory);
    }
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_string());
    let output = Command::new(program).args(["--variable=libdir", "annulus"]).output().ok()?;
    let directory = String::from_utf8(output.stdout).ok()?.trim().to_string();
    (output.status.success() && !directory.is_empty()).then_some(directory)
}

fn main() {
    for name in ["ANNULUS_LIB_DIR", "PKG_CONFIG", "PKG_CONFIG_PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    match library_directory() {
        Some(directory) => {
            println!("cargo:rustc-link-search=native={directory}");
            // Build scripts of crates that depend on this one get it as DEP_ANNULUS_LIBDIR.
            println!("cargo:libdir={directory}");
        }
        None => println!(
            "cargo:warning=pkg-config knows no annulus: the linker looks for libannulus where it always does; \
             ANNULUS_LIB_DIR may name its directory, or PKG_CONFIG_PATH that of annulus.pc"
        ),
    }
    println!("cargo:rustc-link-lib=dylib=annulus");
}
