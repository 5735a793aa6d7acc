//! Retries, for instances and keys alike: of failed commits, and of reading the store.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::StoreError;

/// Attempts of a commit that conflicts with another transaction.
const CONFLICTS: u32 = 8;
/// Attempts of a commit that the store refuses: a connection that was idle for long is often found dead only then.
const FAILURES: u32 = 2;
/// Time for which the store is asked if a commit happened.
pub(crate) const RESOLVE: Duration = Duration::from_secs(15);

/// Returns the pause before the next attempt of a commit, after attempt number `attempt` (from 1) failed with `error` and wrote nothing; `None` if
/// there is to be no further attempt.
pub(crate) fn pause(error: &StoreError, attempt: u32) -> Option<Duration> {
    match error {
        StoreError::Conflict { .. } => (attempt < CONFLICTS).then(|| Duration::from_millis(u64::from(attempt) * 5)),
        StoreError::Unavailable { .. } => (attempt < FAILURES).then_some(Duration::ZERO),
        _ => None,
    }
}

/// Calls `ask` until the store answers if commit `number` of `what` (for the log) happened; `None` without an answer within [`RESOLVE`].
pub(crate) async fn resolve<T, F>(what: &str, number: u64, mut ask: impl FnMut() -> F) -> Option<T>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let deadline = Instant::now() + RESOLVE;
    let mut pause = Duration::from_millis(10);
    loop {
        match tokio::time::timeout_at(deadline, ask()).await {
            Ok(Ok(found)) => return Some(found),
            Ok(Err(error)) => tracing::warn!("asking whether commit {number} of {what} happened: {error}"),
            Err(_) => return None,
        }
        if Instant::now() + pause >= deadline {
            return None;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

/// Returns the pause before the store is read again for what others have written: none after a success; after a failure, which is logged, twice the
/// last pause, from 100 ms to 5 s. `what`: the content of the store, for the log.
pub(crate) fn pause_of_follower(result: Result<(), StoreError>, last: Duration, store: &str, what: &str) -> Duration {
    match result {
        Ok(()) => Duration::ZERO,
        Err(error) => {
            tracing::warn!(store, "following the {what}: {error}");
            (last * 2).clamp(Duration::from_millis(100), Duration::from_secs(5))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_commits_are_tried_again() {
        let conflict = || StoreError::Conflict { store: "sqlite", doing: "commit", reason: "busy".into() };
        let unavailable = || StoreError::unavailable("sqlite", "commit", "gone");
        let table: [(StoreError, u32, Option<u64>); 6] = [
            (conflict(), 1, Some(5)),
            (conflict(), 7, Some(35)),
            (conflict(), 8, None),
            (unavailable(), 1, Some(0)),
            (unavailable(), 2, None),
            (StoreError::Address { reason: "none" }, 1, None),
        ];
        for (error, attempt, expected) in table {
            assert_eq!(pause(&error, attempt), expected.map(Duration::from_millis), "{error}, try {attempt}");
        }
    }

    #[tokio::test]
    async fn a_store_is_asked_until_it_answers() {
        let mut asked = 0;
        let found = resolve("instances", 7, || {
            asked += 1;
            let answer = if asked < 4 { Err(StoreError::unavailable("sqlite", "resolve", "gone")) } else { Ok(3) };
            std::future::ready(answer)
        });
        assert_eq!((found.await, asked), (Some(3), 4));
    }
}
