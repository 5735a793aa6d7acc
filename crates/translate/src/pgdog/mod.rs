//! PgDog's pgdog.toml and users.toml.

mod databases;
mod keys;
#[cfg(test)]
mod tests;
mod translate;
mod users;

pub(super) use translate::plan;
