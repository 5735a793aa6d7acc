//! The fuzz targets in one program, without libFuzzer: each is run with its seeds, and with bytes from a fixed sequence.
//!
//! `make test` compiles and checks the targets by this program alone: a program a target would be linked 20 times.

use std::path::Path;

/// Defines a module a target, and the list of all.
macro_rules! targets {
    ($($module:ident $file:literal),* $(,)?) => {
        $(#[path = $file] mod $module;)*
        const TARGETS: &[(&str, fn(&[u8]))] = &[$(($file, $module::run)),*];
    };
}

targets! {
    admin "../fuzz_targets/admin.rs",
    archive_objects "../fuzz_targets/archive.rs",
    backup_parts "../fuzz_targets/backup.rs",
    binlog_events "../fuzz_targets/binlog.rs",
    classifier "../fuzz_targets/classifier.rs",
    config "../fuzz_targets/config.rs",
    dns "../fuzz_targets/dns.rs",
    entries "../fuzz_targets/entries.rs",
    filter "../fuzz_targets/filter.rs",
    hba "../fuzz_targets/hba.rs",
    moving "../fuzz_targets/moving.rs",
    node "../fuzz_targets/node.rs",
    oauth "../fuzz_targets/oauth.rs",
    orders "../fuzz_targets/orders.rs",
    peers "../fuzz_targets/peers.rs",
    policy "../fuzz_targets/policy.rs",
    probe "../fuzz_targets/probe.rs",
    protocol "../fuzz_targets/protocol.rs",
    proxy_core "../fuzz_targets/core.rs",
    rules "../fuzz_targets/rules.rs",
    scram "../fuzz_targets/scram.rs",
    tls_records "../fuzz_targets/tls.rs",
    wal "../fuzz_targets/wal.rs",
    wire_messages "../fuzz_targets/wire.rs",
}

/// Returns a target's name, as cargo has it.
fn name(file: &str) -> &str {
    Path::new(file).file_stem().and_then(|stem| stem.to_str()).expect("a file's name")
}

#[test]
fn each_target_is_here() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(here.join("fuzz_targets")).expect("read the directory of the targets");
    let mut found: Vec<String> = files
        .map(|file| file.expect("read an entry").path().file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    found.sort();
    let mut listed: Vec<&str> = TARGETS.iter().map(|(file, _)| name(file)).collect();
    listed.sort_unstable();
    assert_eq!(found, listed);
}

#[test]
fn seeds() {
    let mut count = 0;
    for (file, run) in TARGETS {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name(file));
        let Ok(seeds) = std::fs::read_dir(seeds) else { continue };
        for seed in seeds {
            run(&std::fs::read(seed.expect("read an entry").path()).expect("read a seed"));
            count += 1;
        }
    }
    assert!(count > 20, "{count} seeds");
}

#[test]
fn any_bytes() {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    for (_, run) in TARGETS {
        run(&[]);
        for _ in 0..50 {
            let bytes: Vec<u8> = (0..next()).map(|_| next()).collect();
            run(&bytes);
        }
    }
}
