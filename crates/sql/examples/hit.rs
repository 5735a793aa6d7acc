//! Prints the cost of a cache hit and of a miss: `cargo run --release -p sql --example hit`.
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use sql::{Classifier, ClassifierConfig};

fn main() {
    let texts = [
        ("pgbench select", "SELECT abalance FROM pgbench_accounts WHERE aid = 9483729;"),
        ("pgbench, $1", "SELECT abalance FROM pgbench_accounts WHERE aid = $1;"),
        ("begin", "BEGIN"),
        (
            "ORM, 400 bytes",
            r#"SELECT "auth_user"."id", "auth_user"."password", "auth_user"."last_login", "auth_user"."is_superuser", "auth_user"."username", "auth_user"."first_name", "auth_user"."last_name", "auth_user"."email", "auth_user"."is_staff", "auth_user"."is_active", "auth_user"."date_joined" FROM "auth_user" WHERE ("auth_user"."is_active" AND "auth_user"."username" = 'somebody' AND "auth_user"."id" = 42) LIMIT 21"#,
        ),
    ];
    for (name, text) in texts {
        let mut classifier = Classifier::new(ClassifierConfig::default());
        classifier.classify(text.as_bytes());
        let rounds = 2_000_000u32;
        // The best of several runs: the machine is shared.
        let hit = (0..5)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..rounds {
                    black_box(classifier.classify(black_box(text.as_bytes())));
                }
                start.elapsed().as_nanos() as f64 / f64::from(rounds)
            })
            .fold(f64::INFINITY, f64::min);
        let mut cold = Classifier::new(ClassifierConfig { max_entries: 0, ..ClassifierConfig::default() });
        let start = Instant::now();
        for _ in 0..5_000 {
            black_box(cold.classify(black_box(text.as_bytes())));
        }
        let miss = start.elapsed().as_nanos() as f64 / 5_000.0;
        println!("{name:>16}: hit {hit:6.1} ns, miss {:6.1} us", miss / 1_000.0);
    }
}
