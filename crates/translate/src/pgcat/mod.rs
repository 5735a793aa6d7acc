//! PgCat's pgcat.toml.

mod keys;
mod pools;
#[cfg(test)]
mod tests;
mod translate;

pub(super) use translate::plan;
