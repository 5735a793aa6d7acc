//! Texts of a prepared query with `${…}` in them. Pure.
//!
//! Format: <https://developer.hashicorp.com/consul/api-docs/query#prepared-query-templates>. Of the interpolation language there the variables and
//! `match` are known; arithmetic and the like are refused when the query is written.

/// A parsed text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Text(Vec<Part>);

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Full,
    Prefix,
    Suffix,
    /// The segment of the agent, which is always empty here.
    Segment,
    /// A group of the regular expression; 0 is the whole match.
    Match(usize),
}

/// The name that was asked for, as a template sees it.
#[derive(Debug)]
pub(super) struct Name<'a> {
    pub(super) full: &'a str,
    /// The name of the template, with which the full name begins.
    pub(super) prefix: &'a str,
    /// Groups of the regular expression; none if it does not match, or there is none.
    pub(super) matches: Vec<&'a str>,
}

/// Error of a text.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum BadText {
    #[error("${{ has no end in {0:?}")]
    Open(String),
    #[error(
        "unknown expression ${{{0}}}: expected name.full, name.prefix, name.suffix, agent.segment or match(NUMBER)"
    )]
    Unknown(String),
}

impl Text {
    pub(super) fn parse(text: &str) -> Result<Text, BadText> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let (before, from) = rest.split_at(at);
            if let Some(escaped) = before.strip_suffix('$') {
                literal.push_str(escaped);
                literal.push_str("${");
                rest = &from[2..];
                continue;
            }
            literal.push_str(before);
            let (expression, behind) = from[2..].split_once('}').ok_or_else(|| BadText::Open(text.to_owned()))?;
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal)));
            }
            parts.push(Part::parse(expression.trim()).ok_or_else(|| BadText::Unknown(expression.to_owned()))?);
            rest = behind;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        Ok(Text(parts))
    }

    pub(super) fn render(&self, name: &Name<'_>) -> String {
        let part = |part: &Part| match part {
            Part::Literal(text) => text.clone(),
            Part::Full => name.full.to_owned(),
            Part::Prefix => name.prefix.to_owned(),
            Part::Suffix => name.full.strip_prefix(name.prefix).unwrap_or(name.full).to_owned(),
            Part::Segment => String::new(),
            Part::Match(group) => name.matches.get(*group).map(|text| (*text).to_owned()).unwrap_or_default(),
        };
        self.0.iter().map(part).collect()
    }
}

impl Part {
    fn parse(expression: &str) -> Option<Part> {
        match expression {
            "name.full" => Some(Part::Full),
            "name.prefix" => Some(Part::Prefix),
            "name.suffix" => Some(Part::Suffix),
            "agent.segment" => Some(Part::Segment),
            call => {
                let inner = call.strip_prefix("match")?.trim_start().strip_prefix('(')?.strip_suffix(')')?;
                inner.trim().parse().ok().map(Part::Match)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_with_variables() {
        let name = Name { full: "geo-db-eu", prefix: "geo-", matches: vec!["db-eu", "db", "eu"] };
        for (text, expected) in [
            ("", Ok("")),
            ("plain", Ok("plain")),
            ("${name.full}", Ok("geo-db-eu")),
            ("${name.prefix}|${name.suffix}", Ok("geo-|db-eu")),
            ("a${match(1)}b${ match( 2 ) }c", Ok("adbbeuc")),
            ("${match(0)}", Ok("db-eu")),
            ("[${match(3)}]", Ok("[]")),
            ("[${agent.segment}]", Ok("[]")),
            ("$${name.full}", Ok("${name.full}")),
            ("$5 and }", Ok("$5 and }")),
            ("ä${name.prefix}ö", Ok("ägeo-ö")),
            ("${name.full", Err(BadText::Open("${name.full".into()))),
            ("${1 + 2}", Err(BadText::Unknown("1 + 2".into()))),
            ("${match(-1)}", Err(BadText::Unknown("match(-1)".into()))),
            ("${}", Err(BadText::Unknown(String::new()))),
        ] {
            let rendered = Text::parse(text).map(|text| text.render(&name));
            assert_eq!(rendered, expected.map(str::to_owned), "{text:?}");
        }
    }
}
