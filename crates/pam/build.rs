//! Lets the linker find PAM's library if only the runtime package is installed, not the development package: the only thing needed from the latter is
//! the name `libpam.so`.

use std::path::{Path, PathBuf};

/// Returns the library directories of distributions.
fn directories() -> Vec<PathBuf> {
    let machine = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    [format!("/usr/lib/{machine}-linux-gnu"), format!("/lib/{machine}-linux-gnu")]
        .into_iter()
        .chain(["/usr/lib64", "/lib64", "/usr/lib", "/lib"].map(str::to_owned))
        .map(PathBuf::from)
        .collect()
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let directories = directories();
    if directories.iter().any(|directory| directory.join("libpam.so").exists()) {
        return;
    }
    let Some(library) = directories.iter().map(|directory| directory.join("libpam.so.0")).find(|path| path.exists())
    else {
        println!("cargo:warning=no libpam.so.0 was found: kingpost-pam can't be linked (install libpam0g or pam)");
        return;
    };
    let Some(out) = std::env::var_os("OUT_DIR") else { return };
    let link = Path::new(&out).join("libpam.so");
    let _ = std::fs::remove_file(&link);
    if let Err(error) = std::os::unix::fs::symlink(&library, &link) {
        println!("cargo:warning=cannot make {}: {error}", link.display());
        return;
    }
    println!("cargo:rustc-link-search=native={}", Path::new(&out).display());
}
