//! Verification of clients' passwords by PAM (method `pam` in rules), each by a process of its own: `kingpost-pam`, whose source describes the data
//! on its pipes.

use std::net::IpAddr;
use std::time::Duration;

use proxy::config::PamConfig;
use proxy::pam::Options;
use proxy::verify::{Question, Verdict};

use crate::helper::{Helper, Unable};

/// Name of the program.
const HELPER: &str = "kingpost-pam";

/// `[proxy.pam]` since the start or the last reload.
pub(crate) struct Modules(Helper);

impl Modules {
    /// Makes the helper as configured.
    pub(crate) fn of(config: &PamConfig) -> Modules {
        let of = ("libpam.so.0", "proxy.pam.helper");
        Modules(Helper::new(HELPER, config.helper.as_deref(), config.timeout, of))
    }

    /// Longest time for a question.
    pub(crate) fn timeout(&self) -> Duration {
        self.0.timeout()
    }

    /// Asks PAM. Every answer but success refuses the login, as with PostgreSQL.
    pub(crate) async fn ask(&self, question: &Question, by: &Options) -> Result<Verdict, Unable> {
        let line = self.0.ask(&text(question, by)).await?;
        if line == "right" {
            return Ok(Verdict::Right);
        }
        let Some(why) = line.strip_prefix("wrong ") else { return Err(self.0.unknown_line()) };
        tracing::info!(user = &*question.user, service = by.service, why, "PAM refuses a user");
        Ok(Verdict::Wrong)
    }
}

/// Encodes a question for the helper.
fn text(question: &Question, by: &Options) -> secret::Secret {
    let host = question.from.map(|address: IpAddr| address.to_canonical().to_string()).unwrap_or_default();
    let by_name = if by.use_hostname { "1" } else { "0" };
    let fields = ["kingpost-pam 1", &by.service, &question.user, &host, by_name, question.password.expose()];
    // No field has a zero byte: names and passwords are the protocol's strings, which end at one.
    secret::Secret::new(fields.map(|field| format!("{field}\0")).concat())
}
