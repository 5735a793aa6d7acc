//! A disk with a settable flush time: a library, loaded before the C library, that delays `fsync` and `fdatasync`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::run::new_dir;

/// Reads the time from a file at each flush, so that it can change while the process runs.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void slow(void) {
    const char *path = getenv("KINGPOST_TESTS_FLUSH_MS");
    FILE *file = path ? fopen(path, "re") : NULL;
    long ms = 0;
    if (file) {
        if (fscanf(file, "%ld", &ms) != 1) ms = 0;
        fclose(file);
    }
    if (ms > 0) {
        struct timespec time = { ms / 1000, ms % 1000 * 1000000 };
        nanosleep(&time, NULL);
    }
}

#define SLOW(name) \
    int name(int fd) { \
        static int (*real)(int); \
        if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, #name); \
        slow(); \
        return real(fd); \
    }

SLOW(fsync)
SLOW(fdatasync)
"#;

/// Slow flushes for processes that are started with its environment.
#[derive(Debug)]
pub struct SlowDisk {
    library: PathBuf,
    time: PathBuf,
}

impl SlowDisk {
    /// Makes a disk without delay. None: there is no C compiler here.
    ///
    /// # Panics
    /// When its files cannot be written, or the compiler refuses.
    pub fn new() -> Option<SlowDisk> {
        let dir = new_dir("slow-disk");
        let (source, library, time) = (dir.join("slow.c"), dir.join("slow.so"), dir.join("ms"));
        std::fs::write(&source, SOURCE).expect("write the library's source");
        std::fs::write(&time, "0").expect("write the time of a flush");
        let built =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).arg("-ldl").output();
        let Ok(built) = built else { return None };
        assert!(built.status.success(), "cc: {}", String::from_utf8_lossy(&built.stderr));
        Some(SlowDisk { library, time })
    }

    /// Makes each flush take this much longer from now on.
    ///
    /// # Panics
    /// When the time cannot be written.
    pub fn set(&self, time: Duration) {
        let new = self.time.with_extension("new");
        std::fs::write(&new, time.as_millis().to_string()).expect("write the time of a flush");
        std::fs::rename(&new, &self.time).expect("write the time of a flush");
    }

    /// Returns the environment of a process with slow flushes.
    pub fn environment(&self) -> [(String, String); 2] {
        let text = |path: &PathBuf| path.display().to_string();
        [("LD_PRELOAD".into(), text(&self.library)), ("KINGPOST_TESTS_FLUSH_MS".into(), text(&self.time))]
    }
}
