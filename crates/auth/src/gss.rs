//! GSSAPI (method `gss` in rules): each token is verified by a process of its own, `kingpost-gss`, whose source describes the data on its pipes.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proxy::config::GssConfig;
use proxy::verify::{Proven, Question, Verdict};
use secret::Secret;

use crate::helper::{Helper, Unable};

/// Name of the program.
const HELPER: &str = "kingpost-gss";

/// `[proxy.gss]` since the start or the last reload.
pub(crate) struct Tokens(Helper);

impl Tokens {
    /// Makes the helper as configured. The library finds the realms: it reads the system's `krb5.conf`, or the one that this process was started
    /// with.
    pub(crate) fn of(config: &GssConfig) -> Tokens {
        let of = ("libgssapi_krb5.so.2", "proxy.gss.helper");
        let given = |name: &str| std::env::var_os(name).map(Into::into);
        let helper = Helper::new(HELPER, config.helper.as_deref(), config.timeout, of)
            .with("KRB5_KTNAME", config.keytab.clone().or_else(|| given("KRB5_KTNAME")))
            .with("KRB5_CONFIG", given("KRB5_CONFIG"))
            .reading_to_the_end();
        Tokens(helper)
    }

    /// Longest time for a token.
    pub(crate) fn timeout(&self) -> Duration {
        self.0.timeout()
    }

    /// Asks the helper for the principal of a token.
    pub(crate) async fn ask(&self, question: &Question) -> Result<Verdict, Unable> {
        let asked = Secret::new(format!("kingpost-gss 1\0{}\0", question.password.expose()));
        let line = self.0.ask(&asked).await?;
        if let Some(why) = line.strip_prefix("wrong ") {
            tracing::info!(user = &*question.user, why, "a token of GSSAPI is not good");
            return Ok(Verdict::Wrong);
        }
        proven(&line).map(|proven| Verdict::Is(Box::new(proven))).ok_or_else(|| self.0.unknown_line())
    }
}

/// Parses `right NAME REPLY`.
fn proven(line: &str) -> Option<Proven> {
    let (name, reply) = line.strip_prefix("right ")?.split_once(' ')?;
    let name = String::from_utf8(STANDARD.decode(name).ok()?).ok()?;
    let reply = if reply == "-" { Vec::new() } else { STANDARD.decode(reply).ok()? };
    // PostgreSQL would read a name with a zero byte as a shorter one.
    (!name.is_empty() && !name.contains('\0')).then_some(Proven { name, reply })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_line_proves_anything() {
        let is = |name: &str, reply: &[u8]| Some(Proven { name: name.into(), reply: reply.into() });
        for (line, expected) in [
            ("right YW5uQEE= Cg==", is("ann@A", b"\n")),
            ("right YW5uQEE= -", is("ann@A", b"")),
            ("right YW5uQEE=", None),
            ("right  -", None),
            ("right YQBi -", None),
            ("right /w== -", None),
            ("right ann -", None),
            ("right", None),
            ("", None),
        ] {
            assert_eq!(proven(line), expected, "{line}");
        }
    }
}
