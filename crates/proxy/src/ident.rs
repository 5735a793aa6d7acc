//! Name maps: the database users that a client may be to whom a certificate or the operating system gives another name. In the format of PostgreSQL's
//! `pg_ident.conf`:
//!
//! ```text
//! # map   name of the system or the certificate   database user
//! corp    alice@example.com                       alice
//! corp    /^(.*)@example\.com$                    \1
//! ```
//!
//! The syntax has the meaning of PostgreSQL 16:
//! - A name (in either column) that begins with a slash is a regular expression, which matches anywhere in the name unless it is anchored.
//! - `\1` in the database user is the match of the first group of the system name's expression, and is compared as text.
//! - `all` as the database user is every user; `"all"` is the user of that name.
//! - Several lines may permit the same name to be several users.
//!
//! `+role`, `@file` and the include directives are errors, as in [`hba`](crate::hba): an unsupported line must not admit a client.

use regex::{Regex, RegexBuilder};

pub use crate::tokens::Error;
use crate::tokens::{Word, parse_lines, single, split};

/// Maximum number of lines.
pub const MAX_LINES: usize = 10_000;
/// Maximum number of regular expressions in a file, each of which takes up to 256 KiB.
pub const MAX_EXPRESSIONS: usize = 1_000;
/// Maximum size in bytes of a compiled expression.
const MAX_REGEX: usize = 256 << 10;

/// Maps of a file.
#[derive(Debug, Clone, Default)]
pub struct Maps(Vec<Line>);

#[derive(Debug, Clone)]
struct Line {
    map: Box<str>,
    system: Pattern,
    user: User,
}

/// A name, or a regular expression that matches names.
#[derive(Debug, Clone)]
enum Pattern {
    Is(Box<str>),
    Matches(Regex),
}

/// Database users of a line.
#[derive(Debug, Clone)]
enum User {
    All,
    Is(Box<str>),
    Matches(Regex),
    /// The system name's first group, between two texts.
    Group(Box<str>, Box<str>),
}

/// Verdict of a line on a pair of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Allowed,
    NotMine,
    /// The user has `\1`, and the group took no part in the match: as in PostgreSQL, later lines are not tried.
    Broken,
}

impl Maps {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// All invalid lines, up to a maximum.
    pub fn parse(text: &str) -> Result<Maps, Vec<Error>> {
        let mut expressions = 0;
        parse_lines(text, MAX_LINES, |line| Line::parse(line, &mut expressions)).map(Maps)
    }

    /// True if there is a map of this name.
    #[must_use]
    pub fn has(&self, map: &str) -> bool {
        self.0.iter().any(|line| *line.map == *map)
    }

    /// True if a client with the name `system`, of the operating system or a certificate, may be the database user `user`: by this map, or, without a
    /// map, if both names are equal.
    #[must_use]
    pub fn allow(&self, map: Option<&str>, system: &str, user: &str) -> bool {
        let Some(map) = map else { return system == user };
        let lines = self.0.iter().filter(|line| *line.map == *map);
        let mut verdicts = lines.map(|line| line.verdict(system, user));
        verdicts.find(|verdict| *verdict != Verdict::NotMine) == Some(Verdict::Allowed)
    }
}

impl Line {
    fn parse(line: &str, expressions: &mut usize) -> Result<Option<Line>, String> {
        let mut fields = split(line)?.into_iter();
        let Some(map) = fields.next() else { return Ok(None) };
        let map = single(&map, "the name of a map")?.clone();
        if matches!(&*map.text, "include" | "include_if_exists" | "include_dir") {
            return Err(format!("found {:?}, expected the name of a map: other files are not read", map.text));
        }
        let mut next = |what: &str| -> Result<Word, String> {
            let field = fields.next().ok_or_else(|| format!("found too few fields, expected {what}"))?;
            single(&field, what).cloned()
        };
        let system = next("the name of a system's user or of a certificate")?;
        let user = next("the name of a database user")?;
        if fields.next().is_some() {
            return Err("found a field behind the database user, expected the end of the line".into());
        }
        for word in [&map, &system, &user] {
            if !word.quoted && word.text.starts_with('@') {
                return Err(format!("found {:?}, expected a name: other files are not read", word.text));
            }
        }
        let mut compile = |word: &Word| match word.text.strip_prefix('/') {
            None => Ok(Pattern::Is(word.text.as_str().into())),
            Some(_) if *expressions >= MAX_EXPRESSIONS => {
                Err(format!("found more than {MAX_EXPRESSIONS} regular expressions, expected at most as many"))
            }
            Some(text) => {
                *expressions += 1;
                // As in PostgreSQL, a dot matches any character.
                let regex = RegexBuilder::new(text).size_limit(MAX_REGEX).dot_matches_new_line(true).build();
                regex.map(Pattern::Matches).map_err(|error| {
                    format!("found the expression {text:?}, expected one that Rust's regex reads: {error}")
                })
            }
        };
        let (system, found) = (compile(&system)?, compile(&user)?);
        let user = match found {
            Pattern::Matches(regex) => User::Matches(regex),
            Pattern::Is(text) if !user.quoted && text.starts_with('+') => {
                return Err(format!("found {text:?}, expected a user: the proxy does not know who is in which role"));
            }
            Pattern::Is(text) => match (text.split_once("\\1"), &system) {
                (Some(_), Pattern::Matches(regex)) if regex.captures_len() < 2 => {
                    return Err(format!(
                        "found \\1, expected a group in parentheses in the expression {:?}",
                        regex.as_str()
                    ));
                }
                (Some((before, behind)), Pattern::Matches(_)) => User::Group(before.into(), behind.into()),
                _ if !user.quoted && *text == *"all" => User::All,
                _ => User::Is(text),
            },
        };
        Ok(Some(Line { map: map.text.into(), system, user }))
    }

    fn verdict(&self, system: &str, user: &str) -> Verdict {
        let group = match &self.system {
            Pattern::Is(name) if **name == *system => None,
            Pattern::Is(_) => return Verdict::NotMine,
            Pattern::Matches(regex) => match regex.captures(system) {
                Some(found) => found.get(1),
                None => return Verdict::NotMine,
            },
        };
        let allowed = match &self.user {
            User::All => true,
            User::Is(name) => **name == *user,
            User::Matches(regex) => regex.is_match(user),
            User::Group(before, behind) => {
                let Some(group) = group else { return Verdict::Broken };
                let middle = user.strip_prefix(&**before).and_then(|rest| rest.strip_suffix(&**behind));
                middle == Some(group.as_str())
            }
        };
        if allowed { Verdict::Allowed } else { Verdict::NotMine }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// `tests/e2e/name_maps.rs` compares such pairs with PostgreSQL's decisions.
    #[test]
    fn who_may_be_whom() {
        let maps = Maps::parse(
            "# a comment\n\
             corp   alice@example.com   alice\n\
             corp   \"with blank\"      bob # and another\n\
             corp   /^(.*)@example\\.org$ \\1\n\
             corp   /^ops-              ops\n\
             corp   /^x(.*)y$           pre_\\1_post\n\
             other  \\\nalice@example.com   carol\n\
             group  /^(a)?b$            \\1\n\
             group  b                   b\n\
             new    root                all\n\
             new    dan                 \"all\"\n\
             new    eve                 /^e\n\
             new    /^(.*)@all$         \\1\n\
             new    plus                \"+x\"\n\
             new    back                a\\1\n",
        )
        .unwrap();
        for (map, system, user, allowed) in [
            (Some("corp"), "alice@example.com", "alice", true),
            (Some("corp"), "alice@example.com", "carol", false),
            (Some("other"), "alice@example.com", "carol", true),
            (Some("corp"), "Alice@example.com", "alice", false),
            (Some("corp"), "alice", "alice", false),
            (Some("corp"), "with blank", "bob", true),
            (Some("corp"), "dan@example.org", "dan", true),
            (Some("corp"), "dan@example.org", "eve", false),
            (Some("corp"), "dan@example.org.evil", "dan", false),
            (Some("corp"), "d\nan@example.org", "d\nan", true),
            (Some("corp"), "ops-7", "ops", true),
            (Some("corp"), "no-ops-7", "ops", false),
            (Some("corp"), "xzy", "pre_z_post", true),
            (Some("corp"), "xzy", "pre_z", false),
            (Some("corp"), "xy", "pre__post", true),
            // A group that took no part ends the search, whatever lines follow.
            (Some("group"), "ab", "a", true),
            (Some("group"), "b", "", false),
            (Some("group"), "b", "b", false),
            // Features of PostgreSQL since version 16.
            (Some("new"), "root", "anybody", true),
            (Some("new"), "dan", "all", true),
            (Some("new"), "dan", "bob", false),
            (Some("new"), "eve", "emil", true),
            (Some("new"), "eve", "fred", false),
            // The match of a group is a name, never the keyword.
            (Some("new"), "all@all", "all", true),
            (Some("new"), "all@all", "bob", false),
            (Some("new"), "plus", "+x", true),
            (Some("new"), "back", "a\\1", true),
            (Some("none"), "alice", "alice", false),
            (None, "alice", "alice", true),
            (None, "alice@example.com", "alice", false),
        ] {
            assert_eq!(maps.allow(map, system, user), allowed, "{map:?} {system} {user}");
        }
        assert!(maps.has("corp") && !maps.has("corps"));
    }

    proptest::proptest! {
        /// Checks that every file and every name have a verdict, and that a missing map permits no user.
        #[test]
        fn any_text_has_an_answer(text in "([a /^$.*()+?\\\\1\"@,#|\\[\\]{}-]{0,12}[ \n]?){0,8}", system in ".{0,8}", user in ".{0,8}") {
            if let Ok(maps) = Maps::parse(&text) {
                let first = maps.0.first().map(|line| line.map.clone());
                if let Some(map) = first {
                    let _ = maps.allow(Some(&map), &system, &user);
                }
                assert!(!maps.allow(Some("none of these"), &system, &user));
            }
        }
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for (line, expected) in [
            ("corp", "name of a system's user"),
            ("corp alice", "name of a database user"),
            ("corp alice bob carol", "behind the database user"),
            ("corp a,b bob", "found the list"),
            ("corp /( bob", "expression"),
            ("corp /(.)\\1 bob", "expression"),
            ("corp a /(", "expression"),
            ("corp /^a$ \\1", "a group"),
            ("corp alice +staff", "which role"),
            ("corp @alice bob", "other files"),
            ("include other.conf", "other files"),
            ("include_dir other x", "other files"),
        ] {
            let errors = Maps::parse(&format!("# first\n{line}\n")).map(|_| ()).expect_err(line);
            let right = errors.len() == 1 && errors[0].line == 2 && errors[0].message.contains(expected);
            assert!(right, "{line}: {errors:?}");
        }
        let many = |count: usize| (0..count).map(|n| format!("m /^{n}$ u\n")).collect::<String>();
        assert!(Maps::parse(&many(MAX_EXPRESSIONS)).is_ok());
        assert!(Maps::parse(&many(MAX_EXPRESSIONS + 1)).is_err());
        assert!(Maps::parse("m /^((a{99}){99}){99}$ u").is_err());
    }
}
