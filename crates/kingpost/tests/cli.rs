//! The binary's command line: output, exit codes, messages.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

const GOOD: &str = "[proxy]\nauth = \"trust\"\n[[cluster.nodes]]\nname = \"a\"\naddress = \"127.0.0.1:5432\"\n";

fn kingpost(args: &[&str], variables: &[(&str, &str)], cwd: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kingpost"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KINGPOST_") {
            command.env_remove(name);
        }
    }
    command.args(args).envs(variables.iter().copied()).current_dir(cwd).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn check_says_what_is_wrong_and_where() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("kingpost.toml"), GOOD).unwrap();
    let good = kingpost(&["check"], &[], dir.path());
    assert_eq!((good.status.code(), text(&good.stdout).as_str()), (Some(0), "kingpost.toml: good, 1 node\n"));

    std::fs::write(dir.path().join("bad.toml"), GOOD.replace("auth", "atuh")).unwrap();
    let bad = kingpost(&["check", "--config", "bad.toml"], &[], dir.path());
    let expected = "kingpost: 1 error in the configuration bad.toml\nbad.toml:2:1: proxy.atuh: unknown key; did you mean `auth`?\n";
    assert_eq!((bad.status.code(), text(&bad.stderr).as_str()), (Some(3), expected));

    let variable = [("KINGPOST__PROXY__POOL__SIZE", "0")];
    let bad = kingpost(&["check"], &variable, dir.path());
    assert_eq!(bad.status.code(), Some(3));
    let expected = "environment variable KINGPOST__PROXY__POOL__SIZE: proxy.pool.size: found the integer 0";
    assert!(text(&bad.stderr).contains(expected), "{}", text(&bad.stderr));

    let none = kingpost(&["check", "--config", "none.toml"], &[], dir.path());
    assert_eq!(none.status.code(), Some(3));
    assert!(text(&none.stderr).contains("none.toml"), "{}", text(&none.stderr));
}

#[test]
fn proxy_refuses_a_wrong_configuration() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("k.toml"), "").unwrap();
    let output = kingpost(&["proxy", "--config", "k.toml"], &[], dir.path());
    assert_eq!(output.status.code(), Some(3));
    assert!(
        text(&output.stderr).starts_with("kingpost: 2 errors in the configuration k.toml\n"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn usage_and_help() {
    let dir = tempfile::tempdir().unwrap();
    for (args, code, expected) in [
        (&["--version"][..], 0, concat!("kingpost ", env!("CARGO_PKG_VERSION"))),
        (&["--help"], 0, "Exit codes:"),
        (&["up", "--help"], 0, "Exit codes:"),
        (&["check", "--help"], 0, "KINGPOST_CONFIG"),
        (&[], 2, "Usage:"),
        (&["proxy"], 2, "--config"),
        (&["up", "--replicas", "17"], 2, "17"),
        (&["donw"], 2, "down"),
    ] {
        let output = kingpost(args, &[], dir.path());
        let all = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {all}");
        assert!(all.contains(expected), "{args:?}: {all}");
    }
}

#[test]
fn completions_and_man_pages() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = kingpost(&["completions", shell], &[], dir.path());
        assert_eq!(output.status.code(), Some(0), "{shell}");
        assert!(text(&output.stdout).contains("replicas"), "{shell}");
    }
    let output = kingpost(&["man", "--out", "man"], &[], dir.path());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(dir.path().join("man/kingpost-up.1")).unwrap();
    assert!(page.contains("replicas") && page.contains("Exit codes"), "{page}");
}

#[test]
fn up_explains_what_it_cannot_use() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).unwrap();
    std::fs::create_dir(dir.path().join("mine")).unwrap();
    std::fs::write(dir.path().join("mine/thesis.txt"), "x").unwrap();
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    for (args, code, expected) in [
        (vec!["--dir", "c1", "--listen", &taken.1], 4, &[taken.1.as_str(), "--listen"][..]),
        (vec!["--dir", "c2", "--listen", "0.0.0.0:0"], 3, &["loopback", "scram-sha-256"]),
        (vec!["--dir", "mine"], 4, &["mine", "left alone", "--dir"]),
        (vec!["--dir", "c3", "--listen", "127.0.0.1:0", "--pg-bin", "empty"], 4, &["empty", "postgres", "--pg-bin"]),
    ] {
        let args: Vec<&str> = std::iter::once("up").chain(args).collect();
        let output = kingpost(&args, &[], dir.path());
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
        for expected in expected {
            assert!(errors.contains(expected), "{args:?}: {errors}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path().join("mine")).unwrap().count(), 1, "it is left alone");
    assert!(!dir.path().join("c3/nodes").exists(), "nothing was made");
}

#[test]
fn down_and_status_without_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["down", "status"] {
        let output = kingpost(&[command, "--dir", "none"], &[], dir.path());
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{errors}");
        assert!(errors.contains("none") && errors.contains("kingpost up"), "{errors}");
    }
}
