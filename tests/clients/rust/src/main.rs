//! Usual work of sqlx and tokio-postgres on the server of `DATABASE_URL`; a line for each check, as TAP.

mod pg;
mod sqlx_;

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;
pub type Running = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;
pub type Check = (&'static str, fn() -> Running);

/// Makes checks that have the names of asynchronous functions.
#[macro_export]
macro_rules! checks {
    ($($name:ident),* $(,)?) => { vec![$((stringify!($name), (|| Box::pin($name())) as fn() -> $crate::Running)),*] };
}

pub fn url() -> String {
    std::env::var("DATABASE_URL").expect("DATABASE_URL is set")
}

/// Returns a name that nobody else uses.
pub fn unique(stem: &str) -> String {
    format!("{stem}_{}", &uuid::Uuid::new_v4().simple().to_string()[..12])
}

#[tokio::main]
async fn main() {
    let all: Vec<(&str, Check)> = pg::checks()
        .into_iter()
        .map(|check| ("tokio-postgres", check))
        .chain(sqlx_::checks().into_iter().map(|check| ("sqlx", check)))
        .collect();
    let mut failed = false;
    for (number, (client, (name, work))) in all.iter().enumerate() {
        let work = AssertUnwindSafe(tokio::time::timeout(Duration::from_secs(60), work())).catch_unwind();
        let failure = match work.await {
            Ok(Ok(Ok(()))) => None,
            Ok(Ok(Err(error))) => Some(format!("{error:?}")),
            Ok(Err(_)) => Some("no end within 60 s".into()),
            Err(_) => Some("panicked; see above".into()),
        };
        let verdict = if failure.is_some() { "not ok" } else { "ok" };
        println!("{verdict} {} - {client}: {}", number + 1, name.replace('_', " "));
        if let Some(failure) = failure {
            failed = true;
            println!("{failure}");
        }
    }
    println!("1..{}", all.len());
    std::process::exit(failed.into());
}
