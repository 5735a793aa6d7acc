//! A rules file as entries of `[[proxy.hba]]`, for a configuration written from it.

use crate::config::HbaConfig;
use crate::hba::{MAX_RULES, parse_line};
use crate::tokens::{Error, Word, parse_lines, split};

/// Returns the lines of a rules file, each as the fields of `[[proxy.hba]]`. Quoted words stay quoted.
///
/// # Errors
/// All invalid lines, up to a maximum.
pub fn entries(text: &str) -> Result<Vec<HbaConfig>, Vec<Error>> {
    parse_lines(text, MAX_RULES, entry)
}

fn entry(line: &str) -> Result<Option<HbaConfig>, String> {
    if parse_line(line)?.is_none() {
        return Ok(None);
    }
    let fields: Vec<String> = split(line)?.iter().map(|words| list(words)).collect();
    let (address, method) = match fields.as_slice() {
        [kind, _, _, method @ ..] if kind == "local" => (None, method),
        // Without a prefix length the mask is a field of its own.
        [_, _, _, address, mask, method @ ..] if address.parse::<std::net::IpAddr>().is_ok() => {
            (Some(format!("{address} {mask}")), method)
        }
        [_, _, _, address, method @ ..] => (Some(address.clone()), method),
        // The line was parsed as a rule.
        _ => return Ok(None),
    };
    let field = |at: usize| fields.get(at).cloned().unwrap_or_default();
    Ok(Some(HbaConfig { kind: field(0), database: field(1), user: field(2), address, method: method.join(" ") }))
}

/// Formats a field's words as text that is parsed as the same words.
fn list(words: &[Word]) -> String {
    let words = words.iter().map(|word| match word.quoted {
        true => format!("\"{}\"", word.text.replace('"', "\"\"")),
        false => word.text.clone(),
    });
    words.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hba::{Rule, Rules};

    #[test]
    fn entries_are_the_rules_of_the_file() {
        let text = "# TYPE DATABASE USER ADDRESS METHOD\n\
            local all all trust\n\
            host shop,\"all\" ann , \"b \"\"c\" 10.0.0.0 255.0.0.0 md5\n\
            hostssl sameuser all ::1/128 scram-sha-256 clientcert=verify-ca\n\
            host all \"all\" all reject\n\
            host all all 10.0.0.1 255.255.255.255 ldap ldapserver=\"a b\" ldapprefix=\"cn=, x\"\n";
        let entries = entries(text).unwrap_or_else(|errors| panic!("{errors:?}"));
        let rules: Vec<Rule> = entries
            .iter()
            .map(|entry| Rule::from_fields(entry.fields()).unwrap_or_else(|why| panic!("{entry:?}: {why}")))
            .collect();
        let file = Rules::parse(text).unwrap_or_else(|errors| panic!("{errors:?}"));
        assert_eq!(rules, file.iter().cloned().collect::<Vec<_>>());
        assert_eq!(entries[1].address.as_deref(), Some("10.0.0.0 255.0.0.0"));
    }

    #[test]
    fn a_line_that_is_no_rule_is_refused_with_its_number() {
        let errors =
            entries("local all all trust\nhost all +group all md5\nhost all all samenet md5\n").expect_err("lines");
        assert_eq!(errors.iter().map(|error| error.line).collect::<Vec<_>>(), [2, 3]);
    }
}
