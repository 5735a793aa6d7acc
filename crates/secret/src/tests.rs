#![allow(clippy::unwrap_used)]
use super::*;

const LIMIT: Duration = Duration::from_secs(20);

fn shell(script: &str) -> Source {
    Source::Command(["/bin/sh", "-c", script].map(str::to_owned).to_vec())
}

fn read(source: &Source) -> Result<String, String> {
    source.read(LIMIT).map(|secret| secret.expose().to_owned()).map_err(|error| error.to_string())
}

#[test]
fn the_first_line_counts() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    let huge = "x".repeat(MOST_BYTES as usize + 1);
    for (text, expected) in [
        (&b"one\ntwo\n"[..], Ok("one")),
        (b"one", Ok("one")),
        (b"one\r\n", Ok("one")),
        (b" with blanks \n", Ok(" with blanks ")),
        (b"", Err("empty")),
        (b"\none", Err("empty")),
        (b"\xff\xfe", Err("not UTF-8")),
        (huge.as_bytes(), Err("longer than 64 KiB")),
    ] {
        fs::write(&file, text).unwrap();
        let by_file = read(&Source::File(file.clone()));
        let by_command = read(&Source::Command(vec!["/bin/cat".into(), file.display().to_string()]));
        for found in [by_file, by_command] {
            match expected {
                Ok(password) => assert_eq!(found.as_deref(), Ok(password)),
                Err(why) => assert!(found.as_ref().is_err_and(|error| error.contains(why)), "{found:?}"),
            }
        }
    }
}

#[test]
fn what_goes_wrong_is_said_without_the_secret() {
    for (source, expected) in [
        (Source::File("/no/such/file".into()), "cannot read password_file /no/such/file: No such file"),
        (
            Source::Command(vec!["/no/such/program".into()]),
            "cannot start password_command \"/no/such/program\": No such",
        ),
        (shell("echo s3cret; echo s3cret >&2; exit 3"), "\"/bin/sh\" ended with exit status: 3"),
        (shell("echo s3cret; kill -9 $$"), "signal: 9"),
    ] {
        let error = read(&source).expect_err("was read");
        assert!(error.contains(expected) && !error.contains("s3cret"), "{error}");
    }
    assert_eq!(format!("{:?}", Secret::new("s3cret")), "Secret");
}

#[test]
fn a_command_that_does_not_end_is_killed_with_its_children() {
    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    // A command that keeps its output open, and one that has closed it.
    for output in ["", "exec >&-;"] {
        let script = format!("{output} sleep 1000 & echo $$ $! > {}; wait", pids.display());
        let error = shell(&script).read(Duration::from_millis(500)).expect_err("has ended").to_string();
        assert!(error.contains("was killed"), "{error}");
        // The child was inherited by another process; it is gone, or about to be.
        let until = Instant::now() + LIMIT;
        for pid in fs::read_to_string(&pids).unwrap().split_whitespace() {
            let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            while Instant::now() < until && !state().is_empty() && !state().contains(") Z ") {
                std::thread::sleep(LOOK_EVERY);
            }
            assert!(state().is_empty() || state().contains(") Z "), "{}", state());
        }
    }
}

#[test]
fn what_has_changed_is_read_again_and_what_fails_keeps_its_password() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let (first, second) =
        (Source::File(one.clone()), Source::Command(vec!["/bin/cat".into(), two.display().to_string()]));
    fs::write(&one, "1a").unwrap();
    fs::write(&two, "2a").unwrap();
    let store = Store::default();
    let now = || [&first, &second].map(|source| store.get(source, LIMIT).unwrap().expose().to_owned());
    let due = || store.renew(Which::Due(None), LIMIT);
    assert_eq!(now(), ["1a", "2a"]);
    assert!(!due().changed);
    // A change of a file is detected, also when another file replaces it; that of a command is not.
    let new = dir.path().join("new");
    fs::write(&new, "1b").unwrap();
    fs::rename(&new, &one).unwrap();
    fs::write(&two, "2b").unwrap();
    assert_eq!(now(), ["1a", "2a"], "nothing is read unasked");
    assert!(due().changed && !due().changed);
    assert_eq!(now(), ["1b", "2a"]);
    // A command is read again after its interval, and on request.
    assert!(store.renew(Which::Due(Some(Duration::ZERO)), LIMIT).changed);
    assert_eq!(now(), ["1b", "2b"]);
    fs::write(&two, "2c").unwrap();
    assert!(store.renew(Which::All, LIMIT).changed);
    assert_eq!(now(), ["1b", "2c"]);
    // A failure is reported once for each change, and changes nothing.
    fs::remove_file(&one).unwrap();
    let failed = due();
    assert!(!failed.changed && failed.errors.len() == 1, "{failed:?}");
    assert!(due().errors.is_empty());
    assert_eq!(now(), ["1b", "2c"]);
    fs::write(&one, "1c").unwrap();
    assert!(due().changed);
    assert_eq!(now(), ["1c", "2c"]);
    store.retain(|source| *source == first);
    fs::write(&two, "2d").unwrap();
    assert_eq!(now(), ["1c", "2d"]);
}

#[test]
fn a_password_in_the_configuration_comes_before_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    fs::write(&file, "in the file\n").unwrap();
    assert_eq!(given(Some(&"here".into()), Some(&file)).unwrap().as_deref(), Some("here"));
    assert_eq!(given(None, Some(&file)).unwrap().as_deref(), Some("in the file"));
    assert_eq!(given(None, None).unwrap(), None);
    assert!(given(None, Some(Path::new("/no/such"))).is_err());
    assert_eq!(Source::of(None, &[]), None);
    assert_eq!(Source::of(Some(&file), &["/bin/true".into()]), Some(Source::File(file)));
}

#[test]
fn a_key_of_many_lines_is_read_whole() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key.json");
    let read = |content: &[u8]| {
        fs::write(&file, content).unwrap();
        Source::File(file.clone()).read_whole(LIMIT).map(|secret| secret.expose().to_owned())
    };
    assert_eq!(read(b"\n{\n \"a\": 1\n}\r\n").unwrap(), "{\n \"a\": 1\n}");
    for unusable in [&b" \n\n"[..], b"\xff", &vec![b'x'; MOST_BYTES as usize]] {
        let error = read(unusable).unwrap_err();
        assert!(matches!(error, Error::Unusable { .. }), "{error}");
    }
    let command = Source::Command(["/bin/sh", "-c", "printf 'a\\nb\\n'"].map(String::from).into());
    assert_eq!(command.read_whole(LIMIT).unwrap().expose(), "a\nb");
}
